//! The crate's tour names every module.

#[test]
fn every_module_is_named() {
    let source = include_str!("../src/lib.rs");
    for line in source.lines() {
        let Some(module) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) else {
            continue;
        };
        let mut rows = source.lines().filter(|line| line.starts_with("//! | "));
        assert!(rows.any(|row| row.contains(&format!("`{module}`"))), "the tour does not name {module}");
    }
}
