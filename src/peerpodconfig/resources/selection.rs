//! The nodes that a configuration selects, in the form that its Pods need: they must match both parts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
};

use crate::{api::v1alpha1::PeerPodConfigSpec, peerpodconfig::selection::required_labels};

/// The flat part, for a Pod's `nodeSelector`.
pub(super) fn node_selector(spec: &PeerPodConfigSpec) -> Option<BTreeMap<String, String>> {
    Some(required_labels(spec)).filter(|labels| !labels.is_empty())
}

/// The rest, for a Pod's `affinity`. The operators of the two kinds of selectors mean the same.
pub(super) fn affinity(spec: &PeerPodConfigSpec) -> Option<Affinity> {
    let selector = spec.label_selector.as_ref()?;
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(vec![value.clone()]),
    });
    let further = selector.match_expressions.iter().flatten().map(|it| NodeSelectorRequirement {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::peerpodconfig::selection::Selection;

    fn spec(spec: Value) -> PeerPodConfigSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn selects(of: Value, labels: &[(&str, &str)]) -> bool {
        let label = |key: &str| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        Selection::of(&spec(of)).is_ok_and(|selection| selection.matches(label))
    }

    #[test]
    fn worker_nodes_are_selected_by_default() {
        assert!(selects(json!({}), &[("node.kubernetes.io/worker", "")]));
        assert!(!selects(json!({}), &[("node.kubernetes.io/worker", "yes")]));
        assert!(!selects(json!({}), &[]));
        let spec = spec(json!({}));
        assert_eq!(node_selector(&spec).unwrap()["node.kubernetes.io/worker"], "");
        assert_eq!(affinity(&spec), None);
    }

    #[test]
    fn a_node_matches_both_selectors_with_every_operator() {
        let both = |expression: Value| {
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
            let both = both(expression);
            assert_eq!(selects(both.clone(), &with(("x", "1"))), expected[0], "{both}");
            assert_eq!(selects(both.clone(), &with(("x", "3"))), expected[1], "{both}");
            assert_eq!(selects(both.clone(), &base), expected[2], "{both}");
            assert!(!selects(both.clone(), &[("zone", "a"), ("x", "1")]), "{both}");
            assert!(!selects(both.clone(), &[("kind", "metal"), ("x", "1")]), "{both}");
            let affinity = serde_json::to_value(affinity(&spec(both.clone()))).unwrap();
            let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
            let expected = json!([{ "matchExpressions": [
                { "key": "kind", "operator": "In", "values": ["metal"] },
                both["labelSelector"]["matchExpressions"][0],
            ] }]);
            assert_eq!(terms, &expected);
        }
    }

    #[test]
    fn an_empty_selector_selects_every_node() {
        for empty in [json!({ "labelSelector": {} }), json!({ "nodeSelector": {} })] {
            assert!(selects(empty.clone(), &[]));
            let spec = spec(empty);
            assert_eq!((node_selector(&spec), affinity(&spec)), (None, None));
        }
    }
}
