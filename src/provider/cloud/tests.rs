use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::*;
use crate::{
    provider::ErrorClass,
    settings::{Common, Kind},
};

/// Where code must not name a cloud: the operator, and the generators of its packages.
const SOURCES: [&str; 2] = ["src", "xtask/src/manifests"];

/// The registry.
const REGISTRY: &str = "src/provider/mod.rs";

#[test]
fn names_are_found_and_are_spelled_exactly() {
    for cloud in CLOUDS {
        assert_eq!(Cloud::named(cloud.name()), Some(cloud));
    }
    for wrong in ["", "Libvirt", "libvirt ", "ibmcloud_powervs", "openstack"] {
        assert_eq!(Cloud::named(wrong), None);
    }
}

/// Releases of cloud-api-adaptor up to v0.17.0 take any text of these as yes. So no file that users copy may set them.
const YES_IF_SET: [&str; 4] =
    ["DOCKER_TLS_VERIFY", "EXTERNAL_NETWORK_VIA_PODVM", "PODVM_LAUNCHTEMPLATE_NAME", "TLS_SKIP_VERIFY"];

#[test]
fn every_setting_is_described_once_for_each_provider() {
    for cloud in CLOUDS {
        let keys: Vec<_> = Common::KEYS.iter().chain(cloud.keys()).collect();
        let names: BTreeSet<_> = keys.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), keys.len(), "{cloud} has a setting twice");
        for Key { name, doc, kind, default, .. } in keys {
            assert!(
                name.bytes().all(|it| it.is_ascii_uppercase() || it.is_ascii_digit() || it == b'_'),
                "{name}"
            );
            assert!(doc.ends_with('.') && !doc.contains("  "), "{name}: {doc}");
            assert!(*kind != Kind::Secret || default.is_empty(), "{name} is a secret with a default");
            let is_switch = ["true", "false"].contains(default)
                || YES_IF_SET.contains(name) && doc.contains("empty for no");
            assert_eq!(*kind == Kind::Boolean, is_switch, "{name} is a switch if its default is one");
            assert!(!YES_IF_SET.contains(name) || default.is_empty(), "{name} would turn itself on");
        }
    }
}

#[test]
fn credentials_are_secret_and_nothing_else_is() {
    let all = CLOUDS.into_iter().flat_map(Cloud::keys).chain(Common::KEYS);
    for Key { name, kind, .. } in all {
        let telling = ["PASSWORD", "SECRET", "TOKEN", "CREDENTIALS", "API_KEY", "ACCESS_KEY", "CLIENT_ID"];
        let credential = telling.iter().any(|it| name.contains(it)) && !name.ends_with("_FILE");
        assert!(!credential || *kind == Kind::Secret, "{name} belongs into the Secret");
    }
}

#[test]
fn an_instance_type_and_what_overrules_it_are_settings_of_their_cloud() {
    for cloud in CLOUDS {
        let instance_type = cloud.instance_type.into_iter();
        for name in instance_type.flat_map(|it| [Some(it.name), it.overruled_by]).flatten() {
            assert!(cloud.keys().iter().any(|key| key.name == name), "{cloud} has no setting {name}");
        }
    }
}

#[test]
fn a_recorded_place_that_cannot_be_read_is_an_entry_to_delete() {
    let recorded = RecordedPlace::former("elsewhere", None);
    let former = Opening { recorded: Some(recorded), ..Opening::new(1) };
    let place = |opening: &Opening<'_>| {
        let checked = Ok(Endpoint { setting: "REGION", address: "here".to_owned() });
        opening.place(checked, "region", |address| (address == "here").then(|| address.to_owned()))
    };
    assert_eq!(place(&Opening::new(1)), Ok("here".to_owned()));
    let error = place(&former).unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid);
    assert_eq!(error.to_string(), "an entry in the record of places names no region; delete that entry");
}

/// Every file of Rust below this folder, without those of tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| path.file_stem().is_some_and(|stem| stem != "tests"));
    let files = entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|it| it == "rs")).collect()
}

/// The lines of code before the tests, which are last in a file.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let code = text.lines().take_while(|line| *line != "#[cfg(test)]");
    code.filter(|line| !line.trim().starts_with("//"))
}

/// The cloud's names, and the names of the settings that no other cloud has.
fn words(cloud: &Cloud) -> impl Iterator<Item = &'static str> {
    let shared = move |key: &&Key| {
        let others = CLOUDS.into_iter().filter(|other| *other != cloud).flat_map(Cloud::keys);
        others.chain(Common::KEYS).any(|other| other.name == key.name)
    };
    let own = cloud.keys().iter().filter(move |key| !shared(key)).map(|key| key.name);
    [Some(cloud.name()), cloud.chart_alias].into_iter().flatten().chain(own)
}

/// Whether one of these words is between quotes in the line, or it goes down a path from the module.
fn speaks_of(line: &str, words: &[&str], module: &str) -> bool {
    let is_module = |before: &str| !before.ends_with(|it: char| it.is_alphanumeric() || it == '_');
    let mut paths = line.match_indices(module).filter(|(at, _)| line[at + module.len()..].starts_with("::"));
    words.iter().any(|word| line.contains(&format!("\"{word}\"")))
        || paths.any(|(at, _)| is_module(&line[..at]))
}

#[test]
fn no_code_but_the_registry_speaks_of_a_cloud_outside_its_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clouds = CLOUDS.map(|cloud| (cloud.name().replace('-', "_"), words(cloud).collect::<Vec<_>>()));
    let mut found = Vec::new();
    for file in SOURCES.iter().flat_map(|folder| sources(&root.join(folder))) {
        let text = fs::read_to_string(&file).unwrap();
        let file = file.strip_prefix(root).unwrap();
        for (module, words) in &clouds {
            if file != Path::new(REGISTRY) && !file.starts_with(Path::new("src/provider").join(module)) {
                let lines = code(&text).filter(|line| speaks_of(line, words, module));
                found.extend(lines.map(|line| format!("{}: {}", file.display(), line.trim())));
            }
        }
    }
    assert!(found.is_empty(), "ask the Cloud instead:\n{}", found.join("\n"));
}

#[test]
fn a_word_between_quotes_or_a_path_is_found_and_what_is_like_it_is_not() {
    let speaks = |line| speaks_of(line, &["byom", "VM_POOL_IPS"], "byom");
    for line in
        ["if cloud == \"byom\" {", "byom::CLOUD", "super::byom::X;", "(byom::KEYS)", "get(\"VM_POOL_IPS\")"]
    {
        assert!(speaks(line), "{line}");
    }
    for line in
        ["\"byom-ip-pool-state\"", "my_byom::x", "mod byom;", "secrets.byom_host_keys", "\"POOL_IPS\""]
    {
        assert!(!speaks(line), "{line}");
    }
    assert_eq!(words(Cloud::named("byom").unwrap()).take(2).collect::<Vec<_>>(), ["byom", "VM_POOL_IPS"]);
    let text = "a\n  // \"byom\"\nb\n    #[cfg(test)]\nc\n#[cfg(test)]\n\"byom\"";
    assert_eq!(code(text).collect::<Vec<_>>(), ["a", "b", "    #[cfg(test)]", "c"]);
}
