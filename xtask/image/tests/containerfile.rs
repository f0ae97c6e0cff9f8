//! The Containerfile.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use image::Materials;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn its_image_names_the_licences_of_all_that_is_in_it() -> Result<()> {
    let license = Materials::of(&root(), "peerpod-operator")?.with_authorities().license()?;
    let containerfile = fs::read_to_string(root().join("Containerfile"))?;
    let label = format!("org.opencontainers.image.licenses=\"{license}\"");
    assert!(containerfile.contains(&label), "the Containerfile needs the label {label}");
    Ok(())
}
