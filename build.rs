//! Passes the layout of the released program to the linker.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=layout.ld");
    let is = |variable: &str, value: &str| env::var(variable).is_ok_and(|it| it == value);
    if is("PROFILE", "release")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && let Ok(folder) = env::var("CARGO_MANIFEST_DIR")
    {
        println!("cargo::rustc-link-arg-bins=-Xlinker");
        println!("cargo::rustc-link-arg-bins=--script={folder}/layout.ld");
    }
}
