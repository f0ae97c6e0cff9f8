//! The README's table and the crate's tour name every module.

#[test]
fn every_module_is_named() {
    let (source, readme) = (include_str!("../src/lib.rs"), include_str!("../README.md"));
    for line in source.lines() {
        let Some(module) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) else {
            continue;
        };
        let named = |text: &str| {
            let mut rows = text.lines().filter(|line| line.trim_start_matches("//! ").starts_with("| "));
            rows.any(|row| row.contains(&format!("`{module}`")))
        };
        assert!(named(readme), "the README does not name {module}");
        assert!(named(source), "the tour does not name {module}");
    }
}
