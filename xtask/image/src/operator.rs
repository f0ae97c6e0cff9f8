//! The operator's image.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::archive::{Config, Image};
use crate::files::Files;

/// The user that the operator runs as, and its group; the Deployment says the same.
pub const USER: u32 = 65_532;

const PROGRAM: &str = "/usr/bin/peerpod-operator";
/// The home folder, in which a key for libvirt by ssh is mounted. It is where cloud-api-adaptor has its own.
const HOME: &str = "/root";
/// Where programs of any distribution look for the authorities that they trust.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
const NAME_SERVICES: &str = "hosts: files dns\n";

/// The image of the operator's program at `program`, for machines like this one: the program, the C library it is linked
/// with, certificates of authorities and the names of two users. The user it runs as may enter its home folder, `/root`.
///
/// `labels` come beside those that say title and licence.
pub fn operator(program: &Path, name: &str, labels: &BTreeMap<String, String>) -> Result<Image> {
    let mut files = Files::new();
    files.install(program, PROGRAM)?;
    let authorities = files.copy(Path::new(AUTHORITIES), AUTHORITIES);
    authorities.context("looking for authorities to trust: install the package ca-certificates")?;
    files
        .file(
            "/etc/passwd",
            format!("root:x:0:0:root:/root:/sbin/nologin\noperator:x:{USER}:{USER}::/root:/sbin/nologin\n"),
        )
        .file("/etc/group", format!("root:x:0:\noperator:x:{USER}:\n"))
        // The C library would ask the name servers first, and hostAliases would come too late.
        .file("/etc/nsswitch.conf", NAME_SERVICES)
        .folder(HOME);
    let mut all = labels.clone();
    for (key, value) in [("title", "peerpod-operator"), ("licenses", "Apache-2.0")] {
        all.insert(format!("org.opencontainers.image.{key}"), value.to_owned());
    }
    let config = Config {
        entrypoint: vec![PROGRAM.to_owned()],
        user: format!("{USER}:{USER}"),
        env: vec!["HOME=/root".to_owned(), "PATH=/usr/bin".to_owned()],
        stop_signal: None,
        labels: all,
    };
    Ok(Image { name: name.to_owned(), files, config })
}
