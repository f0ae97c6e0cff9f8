//! The kinds for this crate's own tests.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

use crate::{
    crd::Crds,
    projection::{MOST, Part, Projection},
};

pub(crate) const FINALIZER: &str = "example.com/widget";

pub(crate) const CRDS: Crds = Crds { group: "example.com", install: "kubectl apply -f crds" };

pub(crate) static WIDGET: Projection =
    Projection { metadata: &[], rest: &[("spec", Part::All), ("status", Part::All)], most: MOST };

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Widget",
    namespaced,
    schema = "disabled",
    status = "WidgetStatus"
)]
pub(crate) struct WidgetSpec {}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct WidgetStatus {
    pub(crate) size: Option<u32>,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(group = "example.com", version = "v1", kind = "Gadget", schema = "disabled", status = "WidgetStatus")]
pub(crate) struct GadgetSpec {}
