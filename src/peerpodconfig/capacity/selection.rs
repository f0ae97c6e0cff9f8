//! Which nodes a configuration is for. Pure *(no client)*.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::api::v1alpha1::PeerPodConfigSpec;

/// The label of the nodes that are meant where nothing is said; its value is empty.
pub const WORKER_LABEL: &str = "node.kubernetes.io/worker";

/// The nodes that have all of these properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    demand: Demand,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Demand {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

/// A selector that Kubernetes does not accept. The nodes that are meant are unknown until it is mended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSelector {
    /// An expression has no such operator.
    #[error(
        "spec.labelSelector: \"{operator}\" of the key \"{key}\" is no operator: use In, NotIn, Exists or DoesNotExist"
    )]
    UnknownOperator {
        /// The expression's key.
        key: String,
        /// What stands for an operator.
        operator: String,
    },
    /// In or `NotIn` without a value.
    #[error("spec.labelSelector: {operator} of the key \"{key}\" needs a value at least")]
    NoValues {
        /// The expression's key.
        key: String,
        /// Its operator.
        operator: String,
    },
    /// Exists or `DoesNotExist` with values.
    #[error("spec.labelSelector: {operator} of the key \"{key}\" can have no values")]
    Values {
        /// The expression's key.
        key: String,
        /// Its operator.
        operator: String,
    },
    /// A label without a name.
    #[error("a key of spec.nodeSelector or spec.labelSelector is empty")]
    NoKey,
}

impl Selection {
    /// The nodes that a configuration means.
    pub fn of(spec: &PeerPodConfigSpec) -> Result<Self, BadSelector> {
        Self::new(spec.node_selector.as_ref(), spec.label_selector.as_ref())
    }

    /// The nodes that match both. A selector that is empty matches every node; where there is none at all, nodes with
    /// [`WORKER_LABEL`] are meant.
    pub fn new(
        labels: Option<&BTreeMap<String, String>>,
        selector: Option<&LabelSelector>,
    ) -> Result<Self, BadSelector> {
        if labels.is_none() && selector.is_none() {
            return Ok(Self(vec![Requirement {
                key: WORKER_LABEL.to_owned(),
                demand: Demand::In(vec![String::new()]),
            }]));
        }
        let matched = selector.and_then(|selector| selector.match_labels.as_ref());
        let equal = labels.into_iter().chain(matched).flatten().map(|(key, value)| {
            Ok(Requirement { key: key.clone(), demand: Demand::In(vec![value.clone()]) })
        });
        let expressions = selector.and_then(|selector| selector.match_expressions.as_ref());
        let requirements: Vec<_> =
            equal.chain(expressions.into_iter().flatten().map(requirement)).collect::<Result<_, _>>()?;
        if requirements.iter().any(|requirement| requirement.key.is_empty()) {
            return Err(BadSelector::NoKey);
        }
        Ok(Self(requirements))
    }

    /// Whether a node is selected, by the value of each of its labels.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|Requirement { key, demand }| {
            let value = label(key);
            let is_one_of =
                |values: &[String]| value.is_some_and(|value| values.iter().any(|it| it == value));
            match demand {
                Demand::In(values) => is_one_of(values),
                Demand::NotIn(values) => !is_one_of(values),
                Demand::Exists => value.is_some(),
                Demand::DoesNotExist => value.is_none(),
            }
        })
    }
}

fn requirement(expression: &LabelSelectorRequirement) -> Result<Requirement, BadSelector> {
    let LabelSelectorRequirement { key, operator, values } = expression;
    let values = values.clone().unwrap_or_default();
    let (key, operator) = (key.clone(), operator.clone());
    let demand = match (operator.as_str(), values.is_empty()) {
        ("In", false) => Demand::In(values),
        ("NotIn", false) => Demand::NotIn(values),
        ("Exists", true) => Demand::Exists,
        ("DoesNotExist", true) => Demand::DoesNotExist,
        ("In" | "NotIn", true) => return Err(BadSelector::NoValues { key, operator }),
        ("Exists" | "DoesNotExist", false) => return Err(BadSelector::Values { key, operator }),
        _ => return Err(BadSelector::UnknownOperator { key, operator }),
    };
    Ok(Requirement { key, demand })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selection(spec: Value) -> Result<Selection, BadSelector> {
        Selection::of(&serde_json::from_value(spec).unwrap())
    }

    fn selects(spec: Value, labels: &[(&str, &str)]) -> bool {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        selection(spec).unwrap().matches(|key| labels.get(key).copied())
    }

    fn expression(operator: &str, values: &[&str]) -> Value {
        let expression = json!({ "key": "zone", "operator": operator, "values": values });
        json!({ "labelSelector": { "matchExpressions": [expression] } })
    }

    #[test]
    fn workers_are_meant_where_nothing_is_said() {
        assert!(selects(json!({}), &[(WORKER_LABEL, "")]));
        assert!(!selects(json!({}), &[(WORKER_LABEL, "true")]));
        assert!(!selects(json!({}), &[("node-role.kubernetes.io/worker", "")]));
    }

    #[test]
    fn empty_selectors_mean_every_node() {
        for spec in [json!({ "nodeSelector": {} }), json!({ "labelSelector": {} })] {
            assert!(selects(spec, &[]));
        }
    }

    #[test]
    fn a_node_must_match_all_that_is_said() {
        let spec = json!({
            "nodeSelector": { "a": "1" },
            "labelSelector": {
                "matchLabels": { "b": "2" },
                "matchExpressions": [{ "key": "c", "operator": "Exists" }],
            },
        });
        let all = [("a", "1"), ("b", "2"), ("c", "")];
        assert!(selects(spec.clone(), &all));
        for missing in 0..all.len() {
            let labels: Vec<_> =
                all.iter().enumerate().filter(|(it, _)| *it != missing).map(|(_, l)| *l).collect();
            assert!(!selects(spec.clone(), &labels), "{labels:?}");
        }
        assert!(!selects(spec, &[("a", "2"), ("b", "2"), ("c", "")]));
    }

    #[test]
    fn every_operator_is_kubernetes_own() {
        let nodes: [&[(&str, &str)]; 3] = [&[("zone", "x")], &[("zone", "z")], &[]];
        for (operator, values, expected) in [
            ("In", &["x", "y"][..], [true, false, false]),
            ("NotIn", &["x", "y"], [false, true, true]),
            ("Exists", &[], [true, true, false]),
            ("DoesNotExist", &[], [false, false, true]),
        ] {
            let found = nodes.map(|labels| selects(expression(operator, values), labels));
            assert_eq!(found, expected, "{operator}");
        }
    }

    #[test]
    fn what_kubernetes_would_refuse_is_a_problem_and_selects_nothing() {
        let (key, of) = ("zone".to_owned(), |operator: &str| operator.to_owned());
        for (operator, values, expected) in [
            ("In", &[][..], BadSelector::NoValues { key: key.clone(), operator: of("In") }),
            ("NotIn", &[], BadSelector::NoValues { key: key.clone(), operator: of("NotIn") }),
            ("Exists", &["x"], BadSelector::Values { key: key.clone(), operator: of("Exists") }),
            ("DoesNotExist", &["x"], BadSelector::Values { key: key.clone(), operator: of("DoesNotExist") }),
            ("Gt", &["1"], BadSelector::UnknownOperator { key: key.clone(), operator: of("Gt") }),
        ] {
            assert_eq!(selection(expression(operator, values)), Err(expected));
        }
        assert_eq!(selection(json!({ "nodeSelector": { "": "" } })), Err(BadSelector::NoKey));
    }
}
