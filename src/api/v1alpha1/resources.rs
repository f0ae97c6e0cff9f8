//! What a container may use.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What a container may use. Pods refer to resource claims in another field, so there are none here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// The most that the container may use of each resource, such as `memory: 64Mi`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Amount>")]
    pub limits: BTreeMap<String, Quantity>,

    /// What a node keeps for the container of each resource, such as `cpu: 10m`. Without an amount, it is the limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, Amount>")]
    pub requests: BTreeMap<String, Quantity>,
}

impl From<Resources> for ResourceRequirements {
    fn from(Resources { limits, requests }: Resources) -> Self {
        let [limits, requests] = [limits, requests].map(|amounts| (!amounts.is_empty()).then_some(amounts));
        Self { limits, requests, ..Self::default() }
    }
}

/// The schema of a quantity that the API server can read: one that it cannot read would fail later, in the object that gets it.
struct Amount;

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": r"^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
        })
    }
}
