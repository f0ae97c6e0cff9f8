//! The images of operators.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::archive::{Config, Image};
use crate::files::Files;

/// The user that the operator runs as, and its group; the Deployment says the same.
pub const USER: u32 = 65_532;

const PROGRAM: &str = "/usr/bin/peerpod-operator";
/// The home folder. The Secret with a key for libvirt by ssh is mounted there, as in cloud-api-adaptor's image.
const HOME: &str = "/root";
/// The file of trusted authorities, where programs of any distribution look for it.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The public authorities of Debian's package. Its own bundle has those of this machine's administrator, too, such as of a proxy that reads
/// all traffic: no user of the image may trust them.
const PUBLIC_AUTHORITIES: &str = "/usr/share/ca-certificates/mozilla";
const NAME_SERVICES: &str = "hosts: files dns\n";

/// The image of the operator's program at `program`, for machines like this one: the program, the shared libraries that it needs, certificates of
/// authorities and the names of two users. The program's user may enter the home folder, `/root`.
///
/// `labels` are added to that for the title.
pub fn operator(program: &Path, name: &str, labels: &BTreeMap<String, String>) -> Result<Image> {
    let mut files = Files::new();
    files.install(program, PROGRAM)?;
    files
        .file(AUTHORITIES, public_authorities()?)
        .file(
            "/etc/passwd",
            format!("root:x:0:0:root:/root:/sbin/nologin\noperator:x:{USER}:{USER}::/root:/sbin/nologin\n"),
        )
        .file("/etc/group", format!("root:x:0:\noperator:x:{USER}:\n"))
        // Without this file the C library would ask the name servers first, and hostAliases would have no effect.
        .file("/etc/nsswitch.conf", NAME_SERVICES)
        .folder(HOME);
    let env = vec!["HOME=/root".to_owned(), "PATH=/usr/bin".to_owned()];
    let config = Config { env, ..config(PROGRAM, "peerpod-operator", labels) };
    Ok(Image { name: name.to_owned(), files, config })
}

/// The certificates of public authorities, in one file.
pub fn public_authorities() -> Result<String> {
    certificates_in(Path::new(PUBLIC_AUTHORITIES))
}

fn certificates_in(folder: &Path) -> Result<String> {
    let entries = fs::read_dir(folder).with_context(|| {
        format!(
            "reading the authorities to trust in {}: they are of the package ca-certificates of Debian or Ubuntu; on another system, \
             build the image by the Containerfile",
            folder.display()
        )
    })?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort_unstable();
    let texts = paths
        .iter()
        .map(|path| fs::read_to_string(path).with_context(|| format!("reading {}", path.display())));
    Ok(texts.collect::<Result<Vec<_>>>()?.join(""))
}

/// The image of an operator in `examples/`, whose program is at `program`, for machines like this one: the program and the shared libraries that it needs.
/// `labels` are as in [`operator`].
pub fn example(program: &Path, name: &str, labels: &BTreeMap<String, String>) -> Result<Image> {
    let title = program.file_name().and_then(|it| it.to_str()).context("a program has a name")?;
    let path = format!("/usr/bin/{title}");
    let mut files = Files::new();
    files.install(program, &path)?;
    Ok(Image { name: name.to_owned(), files, config: config(&path, title, labels) })
}

/// Runs a program as [`USER`].
fn config(program: &str, title: &str, labels: &BTreeMap<String, String>) -> Config {
    let mut labels = labels.clone();
    labels.insert("org.opencontainers.image.title".to_owned(), title.to_owned());
    Config {
        entrypoint: vec![program.to_owned()],
        user: format!("{USER}:{USER}"),
        labels,
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_the_authorities_gets_another_way_to_the_image() {
        let error = certificates_in(Path::new("/no/such/folder")).expect_err("it does not exist");
        for word in ["/no/such/folder", "ca-certificates", "Debian or Ubuntu", "Containerfile"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
