//! Taints that keep cloud-api-adaptor off a node. Pure *(no client)*.

use k8s_openapi::api::core::v1::Toleration;
use operator_kit::{projection::Part, text::non_empty};
use serde::Deserialize;

/// How the keys of passing taints begin: of those that Kubernetes, its cloud providers, autoscalers and network plugins set on nodes that
/// are unhealthy, new or about to be removed. DaemonSets tolerate most of Kubernetes' own, and a node keeps its share meanwhile.
const PASSING: [&str; 7] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "karpenter.sh/",
    "node.cluster.x-k8s.io/",
    // Cilium sets it again while its agent restarts.
    "node.cilium.io/",
];

/// The fields of a taint. Its time is not among them: one that cannot be read would keep all nodes from being read.
pub(super) const TAINT: Part = Part::Only(&[("key", Part::All), ("value", Part::All), ("effect", Part::All)]);

/// The part of a taint that is decoded.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TaintView {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) effect: String,
}

/// A taint as kubectl writes it, `key=value:effect`; `None` for one that keeps no Pod off, or not for long.
pub(super) fn text(taint: &TaintView) -> Option<String> {
    let TaintView { key, value, effect } = taint;
    let keeps_off = ["NoSchedule", "NoExecute"].contains(&effect.as_str());
    let lasts = !PASSING.iter().any(|begin| key.starts_with(begin));
    (keeps_off && lasts).then(|| match value.as_deref().unwrap_or_default() {
        "" => format!("{key}:{effect}"),
        value => format!("{key}={value}:{effect}"),
    })
}

/// Whether Pods with these tolerations run on a node with this taint, by Kubernetes' own rule.
pub(super) fn tolerated(text: &str, tolerations: &[Toleration]) -> bool {
    // Neither a key nor a value has one of these signs.
    let (taint, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    let (key, value) = taint.split_once('=').unwrap_or((taint, ""));
    tolerations.iter().any(|toleration| {
        let of_key = non_empty(toleration.key.as_deref()).is_none_or(|it| it == key);
        let of_effect = non_empty(toleration.effect.as_deref()).is_none_or(|it| it == effect);
        of_key
            && of_effect
            && match non_empty(toleration.operator.as_deref()) {
                None | Some("Equal") => toleration.value.as_deref().unwrap_or_default() == value,
                // The DaemonSet's own status shows the effect of an unknown operator.
                Some(_) => true,
            }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_taints_that_keep_pods_off_and_last_are_kept() {
        for (taint, expected) in [
            (json!({ "key": "a", "value": "b", "effect": "NoSchedule" }), Some("a=b:NoSchedule")),
            (json!({ "key": "x.y/a", "effect": "NoExecute" }), Some("x.y/a:NoExecute")),
            (json!({ "key": "a", "effect": "PreferNoSchedule" }), None),
            (json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoExecute" }), None),
            (json!({ "key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule" }), None),
            (json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" }), None),
            (
                json!({ "key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule" }),
                None,
            ),
            (json!({ "key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule" }), None),
            (json!({ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }), None),
            (
                json!({ "key": "karpenter.example/a", "effect": "NoSchedule" }),
                Some("karpenter.example/a:NoSchedule"),
            ),
        ] {
            let taint = serde_json::from_value(taint).unwrap();
            assert_eq!(text(&taint).as_deref(), expected, "{taint:?}");
        }
    }

    #[test]
    fn taints_are_tolerated_as_kubernetes_has_it() {
        let holds = |text: &str, toleration: &Value| {
            tolerated(text, &[serde_json::from_value(toleration.clone()).unwrap()])
        };
        for (toleration, expected) in [
            (json!({ "operator": "Exists" }), [true, true]),
            (json!({ "key": "a", "operator": "Exists" }), [true, true]),
            (json!({ "key": "b", "operator": "Exists" }), [false, false]),
            (json!({ "key": "a", "value": "b" }), [true, false]),
            (json!({ "key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule" }), [true, false]),
            (json!({ "key": "a", "operator": "", "effect": "" }), [false, true]),
            (json!({ "key": "a", "operator": "Exists", "effect": "NoExecute" }), [false, true]),
            // No key is every key, however that is written, and a key is no prefix of another.
            (json!({ "key": "", "operator": "Exists" }), [true, true]),
            (json!({ "key": "ab", "operator": "Exists" }), [false, false]),
            (json!({ "key": "a", "operator": "Equal" }), [false, true]),
        ] {
            let found = ["a=b:NoSchedule", "a:NoExecute"].map(|text| holds(text, &toleration));
            assert_eq!(found, expected, "{toleration}");
        }
        assert!(!holds("ab:NoSchedule", &json!({ "key": "a", "operator": "Exists" })));
        assert!(!tolerated("a:NoSchedule", &[]));
    }
}
