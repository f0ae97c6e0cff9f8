//! The nodes that a configuration selects, in the form that its Pods need.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};

use crate::{
    api::v1alpha1::PeerPodConfigSpec,
    peerpodconfig::selection::{Selection, WORKER_LABEL},
};

/// The nodes of a configuration: those that match both parts.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSelection {
    /// None if Kubernetes does not accept the selectors.
    selection: Option<Selection>,
    labels: BTreeMap<String, String>,
    selector: LabelSelector,
}

impl NodeSelection {
    /// The nodes that a configuration selects. An empty selector selects every node.
    pub fn of(spec: &PeerPodConfigSpec) -> Self {
        let default = || [(WORKER_LABEL.to_owned(), String::new())].into();
        let (labels, selector) = match (&spec.node_selector, &spec.label_selector) {
            (None, None) => (default(), None),
            (labels, selector) => (labels.clone().unwrap_or_default(), selector.clone()),
        };
        Self { selection: Selection::of(spec).ok(), labels, selector: selector.unwrap_or_default() }
    }

    /// Whether a node with these labels is selected. Selectors that Kubernetes does not accept select nothing.
    pub fn matches(&self, node: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| node.get(key).map(String::as_str);
        self.selection.as_ref().is_some_and(|selection| selection.matches(label))
    }

    /// The flat part, for a Pod's `nodeSelector`.
    pub(super) fn node_selector(&self) -> Option<BTreeMap<String, String>> {
        Some(self.labels.clone()).filter(|labels| !labels.is_empty())
    }

    /// The rest, for a Pod's `affinity`. The operators of the two kinds of selectors mean the same.
    pub(super) fn affinity(&self) -> Option<Affinity> {
        let labels =
            self.selector.match_labels.iter().flatten().map(|(key, value)| NodeSelectorRequirement {
                key: key.clone(),
                operator: "In".to_owned(),
                values: Some(vec![value.clone()]),
            });
        let further = self.requirements().map(|it| NodeSelectorRequirement {
            key: it.key.clone(),
            operator: it.operator.clone(),
            values: it.values.clone().filter(|values| !values.is_empty()),
        });
        let requirements: Vec<_> = labels.chain(further).collect();
        if requirements.is_empty() {
            return None;
        }
        let term = NodeSelectorTerm { match_expressions: Some(requirements), ..NodeSelectorTerm::default() };
        let required = NodeSelector { node_selector_terms: vec![term] };
        Some(Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(required),
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        })
    }

    fn requirements(&self) -> impl Iterator<Item = &LabelSelectorRequirement> {
        self.selector.match_expressions.iter().flatten()
    }
}

/// Whether a label, present or missing, meets a requirement of a node selector.
pub(super) fn requirement_holds(operator: &str, values: &[String], label: Option<&String>) -> bool {
    let among = |label: &String| values.contains(label);
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    match operator {
        "In" => label.is_some_and(among),
        "NotIn" => !label.is_some_and(among),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => number(label).zip(number(values.first())).is_some_and(|(label, bound)| label > bound),
        "Lt" => number(label).zip(number(values.first())).is_some_and(|(label, bound)| label < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selection(spec: Value) -> NodeSelection {
        NodeSelection::of(&serde_json::from_value(spec).unwrap())
    }

    fn selects(spec: Value, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        selection(spec).matches(&labels.collect())
    }

    #[test]
    fn worker_nodes_are_selected_by_default() {
        assert!(selects(json!({}), &[("node.kubernetes.io/worker", "")]));
        assert!(!selects(json!({}), &[("node.kubernetes.io/worker", "yes")]));
        assert!(!selects(json!({}), &[]));
        let selection = selection(json!({}));
        assert_eq!(selection.node_selector().unwrap()["node.kubernetes.io/worker"], "");
        assert_eq!(selection.affinity(), None);
    }

    #[test]
    fn a_node_matches_both_selectors_with_every_operator() {
        let spec = |expression: Value| {
            json!({
                "nodeSelector": { "zone": "a" },
                "labelSelector": { "matchLabels": { "kind": "metal" }, "matchExpressions": [expression] },
            })
        };
        let base = [("zone", "a"), ("kind", "metal")];
        let with = |further: (&'static str, &'static str)| [base[0], base[1], further];
        let expressions = [
            (json!({ "key": "x", "operator": "In", "values": ["1", "2"] }), [true, false, false]),
            (json!({ "key": "x", "operator": "NotIn", "values": ["1", "2"] }), [false, true, true]),
            (json!({ "key": "x", "operator": "Exists" }), [true, true, false]),
            (json!({ "key": "x", "operator": "DoesNotExist" }), [false, false, true]),
            (json!({ "key": "x", "operator": "Almost" }), [false, false, false]),
        ];
        for (expression, expected) in expressions {
            let spec = spec(expression);
            assert_eq!(selects(spec.clone(), &with(("x", "1"))), expected[0], "{spec}");
            assert_eq!(selects(spec.clone(), &with(("x", "3"))), expected[1], "{spec}");
            assert_eq!(selects(spec.clone(), &base), expected[2], "{spec}");
            assert!(!selects(spec.clone(), &[("zone", "a"), ("x", "1")]), "{spec}");
            assert!(!selects(spec.clone(), &[("kind", "metal"), ("x", "1")]), "{spec}");
            let affinity = serde_json::to_value(selection(spec.clone()).affinity()).unwrap();
            let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
            let expected = json!([{ "matchExpressions": [
                { "key": "kind", "operator": "In", "values": ["metal"] },
                spec["labelSelector"]["matchExpressions"][0],
            ] }]);
            assert_eq!(terms, &expected);
        }
    }

    #[test]
    fn an_empty_selector_selects_every_node() {
        for spec in [json!({ "labelSelector": {} }), json!({ "nodeSelector": {} })] {
            assert!(selects(spec.clone(), &[]));
            assert_eq!((selection(spec.clone()).node_selector(), selection(spec).affinity()), (None, None));
        }
    }

    #[test]
    fn bounds_compare_whole_numbers() {
        let holds =
            |operator, label: &str| requirement_holds(operator, &["5".to_owned()], Some(&label.to_owned()));
        assert_eq!([holds("Gt", "6"), holds("Gt", "5"), holds("Gt", "x")], [true, false, false]);
        assert_eq!([holds("Lt", "4"), holds("Lt", "5"), holds("Lt", "x")], [true, false, false]);
        assert!(!requirement_holds("Gt", &[], Some(&"6".to_owned())));
    }
}
