//! An operator that keeps a number of Pods for each PodSet. See the README beside it for a walk through the code.

pub mod api;
pub mod controller;
pub mod plan;

use api::{CRDS, PodSet};
use operator_kit::{crd, installation::Operator, lease};
use serde_json::json;

/// The operator's name, also as a field manager.
pub const NAME: &str = "podset-operator";

/// What the operator's installation is generated from.
pub fn operator() -> serde_json::Result<Operator> {
    Ok(Operator {
        name: NAME,
        program: env!("CARGO_CRATE_NAME"),
        about: env!("CARGO_PKG_DESCRIPTION"),
        version: env!("CARGO_PKG_VERSION"),
        command: "cargo run --package podset -- manifests examples/podset/manifests",
        crds: &[CRDS],
        definitions: vec![crd::definition::<PodSet>()?],
        permissions: controller::PERMISSIONS,
        election: lease::permissions(&[NAME]),
        sample: json!({
            "apiVersion": "app.example.com/v1alpha1", "kind": "PodSet",
            "metadata": { "name": "podset-sample" }, "spec": { "replicas": 3 },
        }),
    })
}
