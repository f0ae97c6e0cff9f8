//! Which nodes a configuration is for. Pure *(no client)*.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

use super::qualified::{is_label, is_name};
use crate::api::v1alpha1::PeerPodConfigSpec;

/// The label of the nodes that are selected by default. Its value is empty.
pub const WORKER_LABEL: &str = "node.kubernetes.io/worker";

/// The nodes that have all of these properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Vec<Requirement>);

/// What the label of a key must be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    /// In, `NotIn`, Exists or `DoesNotExist`. The latter two have no values.
    operator: String,
    values: Vec<String>,
}

/// A selector that Kubernetes does not accept. The selected nodes are unknown until it is corrected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSelector {
    /// An expression that has no such operator, or not the values that its operator needs.
    #[error("spec.labelSelector: {operator:?} of the key {key:?} {problem}")]
    Expression {
        /// The expression's key.
        key: String,
        /// Its operator, or the text in the place of one.
        operator: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A label that no node can have. The API server would refuse the DaemonSet, so its nodes would stay others than the selected ones.
    #[error("spec.nodeSelector or spec.labelSelector: no label can have the {part} {text:?}")]
    Label {
        /// Key or value.
        part: &'static str,
        /// The malformed text.
        text: String,
    },
}

impl Selection {
    /// The nodes that a configuration selects: those that match both selectors. An empty selector matches every node; without any
    /// selector, nodes with [`WORKER_LABEL`] match.
    pub fn of(spec: &PeerPodConfigSpec) -> Result<Self, BadSelector> {
        let (labels, selector) = (required_labels(spec), spec.label_selector.as_ref());
        let matched = selector.and_then(|selector| selector.match_labels.clone());
        let equal = labels
            .into_iter()
            .chain(matched.into_iter().flatten())
            .map(|(key, value)| Ok(Requirement { key, operator: "In".to_owned(), values: vec![value] }));
        let expressions = selector.and_then(|selector| selector.match_expressions.as_ref());
        let requirements: Vec<_> =
            equal.chain(expressions.into_iter().flatten().map(requirement)).collect::<Result<_, _>>()?;
        match requirements.iter().find_map(Requirement::malformed) {
            Some((part, text)) => Err(BadSelector::Label { part, text: text.to_owned() }),
            None => Ok(Self(requirements)),
        }
    }

    /// The message when no node is selected.
    pub fn unmatched(&self) -> String {
        if self.0.is_empty() {
            return "there is no node".to_owned();
        }
        let label = match self.labels() {
            None => String::new(),
            Some(labels) => format!(
                "label the nodes for peer pods with `kubectl label node NAME {}`, or ",
                labels.join(" ")
            ),
        };
        format!("no node matches {self}; {label}change nodeSelector or labelSelector")
    }

    /// Labels that make a node selected, as kubectl accepts them; `None` if labels alone cannot do it.
    fn labels(&self) -> Option<Vec<String>> {
        let candidates = |it: &Requirement| match &*it.operator {
            "In" => it.values.clone(),
            "Exists" => vec![String::new()],
            _ => Vec::new(),
        };
        let mut requirements: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
        for requirement in &self.0 {
            requirements.entry(&requirement.key).or_default().push(requirement);
        }
        let mut labels = Vec::new();
        for (key, all) in requirements {
            if all.iter().any(|it| !it.is_met(None)) {
                let mut values = all.iter().flat_map(|it| candidates(it));
                let value = values.find(|value| all.iter().all(|it| it.is_met(Some(value))))?;
                labels.push(format!("{key}={value}"));
            }
        }
        (!labels.is_empty()).then_some(labels)
    }

    /// Whether a node is selected, by the value of each of its labels.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|it| it.is_met(label(&it.key)))
    }
}

/// The labels that a node must have beside what `labelSelector` demands.
pub(super) fn required_labels(spec: &PeerPodConfigSpec) -> BTreeMap<String, String> {
    match (&spec.node_selector, &spec.label_selector) {
        (None, None) => [(WORKER_LABEL.to_owned(), String::new())].into(),
        (labels, _) => labels.clone().unwrap_or_default(),
    }
}

impl Requirement {
    /// The part of it that no label can have, if there is one.
    fn malformed(&self) -> Option<(&'static str, &str)> {
        let key = Some(&self.key).filter(|key| !is_label(key)).map(|key| ("key", &**key));
        let is_value = |value: &&String| value.is_empty() || is_name(value);
        key.or_else(|| self.values.iter().find(|it| !is_value(it)).map(|value| ("value", &**value)))
    }

    /// Whether a label of this value, or none, meets it.
    fn is_met(&self, label: Option<&str>) -> bool {
        holds(&self.operator, &self.values, label)
    }
}

/// Whether a label, present or missing, meets a requirement. `Gt` and `Lt` are operators of node selectors alone.
pub(super) fn holds(operator: &str, values: &[String], label: Option<&str>) -> bool {
    let is_one_of = |label: &str| values.iter().any(|value| value == label);
    let number = |text: &str| text.parse::<i64>().ok();
    let numbers = || Some((number(label?)?, number(values.first()?)?));
    match operator {
        "In" => label.is_some_and(is_one_of),
        "NotIn" => !label.is_some_and(is_one_of),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => numbers().is_some_and(|(label, bound)| label > bound),
        "Lt" => numbers().is_some_and(|(label, bound)| label < bound),
        _ => false,
    }
}

/// As kubectl takes it after `--selector`.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, operator, values }) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match (&**operator, &values[..]) {
                ("In", [value]) => write!(f, "{key}={value}")?,
                ("In", values) => write!(f, "{key} in ({})", values.join(","))?,
                ("NotIn", values) => write!(f, "{key} notin ({})", values.join(","))?,
                ("Exists", _) => f.write_str(key)?,
                // DoesNotExist: there are no others.
                _ => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

fn requirement(expression: &LabelSelectorRequirement) -> Result<Requirement, BadSelector> {
    let LabelSelectorRequirement { key, operator, values } = expression.clone();
    let values = values.unwrap_or_default();
    let problem = match (&*operator, values.is_empty()) {
        ("In" | "NotIn", false) | ("Exists" | "DoesNotExist", true) => {
            return Ok(Requirement { key, operator, values });
        }
        ("In" | "NotIn", true) => "needs at least one value",
        ("Exists" | "DoesNotExist", false) => "can have no values",
        _ => "is no operator: use In, NotIn, Exists or DoesNotExist",
    };
    Err(BadSelector::Expression { key, operator, problem })
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
    fn worker_nodes_are_selected_by_default() {
        assert!(selects(json!({}), &[(WORKER_LABEL, "")]));
        assert!(!selects(json!({}), &[(WORKER_LABEL, "true")]));
        assert!(!selects(json!({}), &[("node-role.kubernetes.io/worker", "")]));
    }

    #[test]
    fn the_message_says_how_to_label_a_node_for_the_selector() {
        let asked = |spec| selection(spec).unwrap().unmatched();
        assert_eq!(
            asked(json!({})),
            "no node matches node.kubernetes.io/worker=; label the nodes for peer pods with `kubectl label node NAME \
             node.kubernetes.io/worker=`, or change nodeSelector or labelSelector"
        );
        let expressions = json!([
            { "key": "zone", "operator": "In", "values": ["a", "b"] },
            { "key": "disk", "operator": "NotIn", "values": ["old", "slow"] },
            { "key": "kvm", "operator": "Exists" },
            { "key": "busy", "operator": "DoesNotExist" },
        ]);
        let all = asked(
            json!({ "nodeSelector": { "n": "1" }, "labelSelector": { "matchExpressions": expressions } }),
        );
        assert!(all.contains("matches n=1,zone in (a,b),disk notin (old,slow),kvm,!busy;"), "{all}");
        assert!(all.contains("`kubectl label node NAME kvm= n=1 zone=a`"), "{all}");
        assert_eq!(
            asked(json!({ "labelSelector": { "matchExpressions": [expressions[3]] } })),
            "no node matches !busy; change nodeSelector or labelSelector"
        );
        assert_eq!(asked(json!({ "nodeSelector": {} })), "there is no node");
        for (operator, values, can_be) in [
            ("Exists", json!([]), true),
            ("NotIn", json!(["c"]), true),
            ("In", json!(["a", "b"]), true),
            ("In", json!(["c"]), false),
        ] {
            let asked = asked(json!({
                "nodeSelector": { "zone": "b" },
                "labelSelector": { "matchExpressions": [{ "key": "zone", "operator": operator, "values": values }] },
            }));
            assert_eq!(asked.contains("`kubectl label node NAME zone=b`"), can_be, "{asked}");
            assert_eq!(asked.contains("kubectl label"), can_be, "{asked}");
        }
    }

    #[test]
    fn empty_selectors_mean_every_node() {
        for spec in [json!({ "nodeSelector": {} }), json!({ "labelSelector": {} })] {
            assert!(selects(spec, &[]));
        }
    }

    #[test]
    fn a_node_must_match_every_selector() {
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
    fn bounds_compare_whole_numbers() {
        let is_met = |operator, label| holds(operator, &["5".to_owned()], Some(label));
        assert_eq!([is_met("Gt", "6"), is_met("Gt", "5"), is_met("Gt", "x")], [true, false, false]);
        assert_eq!([is_met("Lt", "4"), is_met("Lt", "5"), is_met("Lt", "x")], [true, false, false]);
        assert!(!holds("Gt", &[], Some("6")));
    }

    #[test]
    fn selectors_that_kubernetes_would_refuse_are_errors() {
        for (operator, values, expected) in [
            ("In", &[][..], r#""In" of the key "zone" needs at least one value"#),
            ("NotIn", &[], r#""NotIn" of the key "zone" needs at least one value"#),
            ("Exists", &["x"], r#""Exists" of the key "zone" can have no values"#),
            ("DoesNotExist", &["x"], r#""DoesNotExist" of the key "zone" can have no values"#),
            ("Gt", &["1"], r#""Gt" of the key "zone" is no operator: use In, NotIn, Exists or DoesNotExist"#),
        ] {
            let refused = selection(expression(operator, values)).unwrap_err();
            assert_eq!(refused.to_string(), format!("spec.labelSelector: {expected}"));
        }
        let label = |part, text: &str| Err(BadSelector::Label { part, text: text.to_owned() });
        for key in ["", "no peer pods", "Example.com/zone", "a/b/c"] {
            assert_eq!(selection(json!({ "nodeSelector": { key: "" } })), label("key", key));
            let expression = json!({ "key": key, "operator": "DoesNotExist" });
            let spec = json!({ "labelSelector": { "matchExpressions": [expression] } });
            assert_eq!(selection(spec), label("key", key));
        }
        assert_eq!(selection(json!({ "nodeSelector": { "zone": "a b" } })), label("value", "a b"));
        assert_eq!(selection(expression("NotIn", &["a", "b/c"])), label("value", "b/c"));
        assert!(selection(expression("NotIn", &["", "a.B_c-1"])).is_ok());
    }
}
