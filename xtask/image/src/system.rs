//! Parts of a program or its image that come from this machine and not from a package of cargo.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::rustc;

/// A part that cargo does not list.
pub(crate) struct SystemPart {
    pub(crate) name: &'static str,
    /// The type of a component, as `CycloneDX` names it.
    pub(crate) kind: &'static str,
    /// An SPDX expression.
    pub(crate) license: &'static str,
    /// `None` if it is not known on this machine.
    pub(crate) version: Option<String>,
    /// Its identifier for programs that look for known faults.
    pub(crate) purl: Option<String>,
    /// The files with its licences, if this machine has them.
    pub(crate) texts: &'static [&'static str],
}

impl SystemPart {
    /// The C library, which is linked into every program.
    pub(crate) fn c_library() -> Self {
        Self::of_debian("libc6-dev", "glibc", "library", "LGPL-2.1-or-later").with_texts(&[
            // It also has the notices of the parts that are under other licences.
            "/usr/share/doc/libc6-dev/copyright",
            "/usr/share/common-licenses/LGPL-2.1",
        ])
    }

    /// What unwinds the stack, of the C compiler. It is linked into every program, too.
    pub(crate) fn compiler_library() -> Self {
        Self::of_debian("libgcc-s1", "libgcc", "library", "GPL-3.0-or-later WITH GCC-exception-3.1")
            .with_texts(&["/usr/share/doc/libgcc-s1/copyright", "/usr/share/common-licenses/GPL-3"])
    }

    /// The certificates of public authorities, which Mozilla chooses.
    pub(crate) fn authorities() -> Self {
        Self::of_debian("ca-certificates", "ca-certificates", "data", "MPL-2.0")
            .with_texts(&["/usr/share/common-licenses/MPL-2.0"])
    }

    /// Rust's standard library, as the compiler brings it.
    pub(crate) fn standard_library(root: &Path) -> Result<Self> {
        let version = Some(rustc::release(root)?);
        let license = "MIT OR Apache-2.0";
        Ok(Self { name: "rust-std", kind: "library", license, version, purl: None, texts: &[] })
    }

    /// A part that this package of Debian, or of a distribution made of it, brings.
    fn of_debian(package: &str, name: &'static str, kind: &'static str, license: &'static str) -> Self {
        let source = source(package);
        let purl = source.as_ref().map(|(source, version)| purl(&distribution(), source, version));
        Self { name, kind, license, version: source.map(|(_, version)| version), purl, texts: &[] }
    }

    fn with_texts(self, texts: &'static [&'static str]) -> Self {
        Self { texts, ..self }
    }
}

/// The source package of an installed package, and its version. `None` on a machine without Debian's packages.
fn source(package: &str) -> Option<(String, String)> {
    let format = "--showformat=${source:Package} ${source:Version}\n";
    let output = Command::new("dpkg-query").args(["--show", format, package]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    // A line for each architecture.
    let (source, version) = text.lines().next()?.split_once(' ')?;
    Some((source.to_owned(), version.to_owned()))
}

/// The name of this machine's distribution.
fn distribution() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let id = release.lines().find_map(|line| line.strip_prefix("ID="));
    id.map_or("debian", |id| id.trim_matches('"')).to_owned()
}

fn purl(distribution: &str, source: &str, version: &str) -> String {
    let version = version.replace('%', "%25").replace('+', "%2B");
    format!("pkg:deb/{distribution}/{source}@{version}?arch=source")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_in_an_identifier_is_escaped() {
        let expected = "pkg:deb/debian/glibc@2.36-9%2Bdeb12u10?arch=source";
        assert_eq!(purl("debian", "glibc", "2.36-9+deb12u10"), expected);
    }

    #[test]
    fn a_package_that_is_not_installed_has_no_version() {
        assert_eq!(source("no-such-package"), None);
    }
}
