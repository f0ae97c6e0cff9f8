//! Prints the licences of the software of others in the image of a package of the workspace in this folder: `third-party PACKAGE`. For
//! the build of the `Containerfile`.

use std::io::{Write as _, stdout};
use std::path::Path;

use anyhow::{Context as _, Result};
use image::Materials;

fn main() -> Result<()> {
    let package = std::env::args().nth(1).context("name a package: third-party PACKAGE")?;
    let materials = Materials::of(Path::new("."), &package)?.with_authorities();
    stdout().write_all(materials.third_party()?.as_bytes())?;
    Ok(())
}
