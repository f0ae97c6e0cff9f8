//! What the objects of a Ptemplate have in common *(no client)*.

use std::collections::BTreeMap;

use kube::{ResourceExt, api::ObjectMeta};
use operator_kit::metadata::controlled_by;

use crate::{NAME, api::Ptemplate};

/// The label of every object and Pod that the operator made. The operator watches objects with this label.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The label with the name of the Ptemplate.
pub const APP: &str = "app";

/// The metadata of an object that is named after its Ptemplate.
pub fn metadata(ptemplate: &Ptemplate, suffix: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(ptemplate.name_any() + suffix),
        namespace: ptemplate.namespace(),
        labels: Some(labels(ptemplate)),
        owner_references: controlled_by(ptemplate),
        ..ObjectMeta::default()
    }
}

/// The labels of an object or a Pod.
pub fn labels(ptemplate: &Ptemplate) -> BTreeMap<String, String> {
    [(APP.to_owned(), ptemplate.name_any()), (MANAGED_BY.to_owned(), NAME.to_owned())].into()
}
