//! Passes the layout of the released program to the linker.

use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=layout.ld");
    let is = |variable: &str, value: &str| env::var(variable).is_ok_and(|it| it == value);
    if is("PROFILE", "release")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && let Ok(folder) = env::var("OUT_DIR")
    {
        // A copy: cargo corrects the path of this folder, and of no other, in a checkout that was moved.
        let script = Path::new(&folder).join("layout.ld");
        fs::copy("layout.ld", &script)?;
        println!("cargo::rustc-link-arg-bins=-Xlinker");
        println!("cargo::rustc-link-arg-bins=--script={}", script.display());
    }
    Ok(())
}
