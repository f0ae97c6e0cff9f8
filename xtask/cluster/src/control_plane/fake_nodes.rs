//! The fake nodes of a cluster.

use anyhow::{Context as _, Result, anyhow};
use serde_json::{Value, json};

use super::{ASK_AGAIN, Cluster, START_DEADLINE, asked};
use crate::component::{Component, FAKE_NODE, FAKE_NODE_VALUE};

/// Where nodes are in the API.
const NODES: &str = "/api/v1/nodes";

impl Cluster {
    pub(super) async fn create_fake_nodes(&self, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let taints = if self.plan.node.is_some() {
            json!([{"key": FAKE_NODE, "effect": "NoSchedule"}])
        } else {
            Value::Null
        };
        for number in 0..count {
            self.post(NODES, &fake_node(&format!("fake-{number}"), &taints)).await?;
        }
        let probe = || {
            asked(ASK_AGAIN, async {
                let nodes: Value = serde_json::from_str(&self.get(NODES).await?)?;
                let nodes = nodes["items"].as_array().context("a list of nodes without items")?;
                let ready = nodes.iter().filter(|node| is_ready(node)).count();
                if ready >= count { Ok(()) } else { Err(anyhow!("{ready} of {count} are ready")) }
            })
        };
        self.running(Component::Kwok)?.wait_until("the fake nodes are ready", START_DEADLINE, probe).await
    }
}

fn fake_node(name: &str, taints: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {FAKE_NODE: FAKE_NODE_VALUE},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": taints},
    })
}

/// Whether the scheduler uses a node: it is ready, and the controller manager has removed the taints of a new node.
pub(crate) fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    ready.any(|condition| condition["status"] == "True") && taints.all(|taint| taint["key"] == FAKE_NODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_when_the_scheduler_uses_it() {
        let node = |ready: &str, taints: Value| {
            let conditions =
                json!([{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]);
            json!({"spec": {"taints": taints}, "status": {"conditions": conditions}})
        };
        assert!(is_ready(&node("True", Value::Null)));
        assert!(!is_ready(&node("Unknown", Value::Null)));
        assert!(!is_ready(&node("True", json!([{"key": "node.kubernetes.io/not-ready"}]))));
        assert!(
            is_ready(&node("True", json!([{"key": FAKE_NODE}]))),
            "it keeps away Pods that did not ask for a fake node"
        );
        assert!(!is_ready(&fake_node("new", &Value::Null)));
    }
}
