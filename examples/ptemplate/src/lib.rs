//! An operator that loads a kernel module and runs its consumers for each Ptemplate. The README beside it walks through the code.

pub mod api;
pub mod controller;
pub mod daemon_set;
pub mod module;
pub mod owned;
pub mod status;

use operator_kit::{crd, installation::Operator, lease};
use serde_json::json;

/// The operator's name, also its field manager.
pub const NAME: &str = "ptemplate-operator";

/// What the operator's installation is generated from.
pub fn operator() -> serde_json::Result<Operator> {
    let spec = json!({
        "maxdev": 5, "requiredDevices": 2, "selector": { "node-role.kubernetes.io/worker": "worker" },
        "defaultmsg": "ptemplate", "imagePullSecret": { "name": "pt-char-pull-secret" },
        "consumer": "quay.io/chrisp262/pt-device-plugin:consumer-latest",
    });
    Ok(Operator {
        name: NAME,
        command: "cargo run --package ptemplate -- manifests examples/ptemplate/manifests",
        program: env!("CARGO_CRATE_NAME"),
        about: env!("CARGO_PKG_DESCRIPTION"),
        version: env!("CARGO_PKG_VERSION"),
        permissions: controller::PERMISSIONS,
        crds: &[api::CRDS, module::KMM],
        definitions: vec![crd::definition::<api::Ptemplate>()?],
        sample: json!({ "apiVersion": "pt.example.com/v1alpha1", "kind": "Ptemplate", "metadata": { "name": "ptemplate-sample" }, "spec": spec }),
        election: lease::permissions(&[NAME]),
    })
}
