//! The files that install the operator are those that the code generates.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

#[test]
fn the_committed_files_are_what_is_generated() {
    let operator = podset::operator().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    operator.generated(&folder).check(&operator.files().unwrap()).unwrap();
}
