//! Nodes to which plans are applied.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    super::{
        super::node::{Texts, tests::view},
        *,
    },
    VM,
};

/// Nodes as plain facts, which writes change like the API server would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster(pub BTreeMap<String, Facts>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub labels: BTreeMap<String, String>,
    pub resources: BTreeMap<String, u32>,
    pub mark: Option<String>,
    /// Whether it has a taint.
    pub tainted: bool,
    /// Peer pods that run.
    pub runs: u32,
}

impl Cluster {
    pub fn workers(count: usize) -> Self {
        Self::numbered((0..count).map(|_| Facts::worker()))
    }

    pub fn numbered(nodes: impl IntoIterator<Item = Facts>) -> Self {
        let nodes = nodes.into_iter().enumerate();
        Self(nodes.map(|(number, facts)| (format!("node-{number}"), facts)).collect())
    }

    pub fn nodes(&self) -> Vec<Arc<Node>> {
        let node = |(name, facts): (&String, &Facts)| {
            let capacity: BTreeMap<_, _> =
                facts.resources.iter().map(|(name, vms)| (name, vms.to_string())).collect();
            let taints =
                facts.tainted.then(|| json!({ "key": "for", "value": "db", "effect": "NoSchedule" }));
            let taints: Vec<_> = taints.into_iter().collect();
            let fields =
                json!({ "labels": facts.labels, "capacity": capacity, "mark": facts.mark, "taints": taints });
            Arc::new(Node::new(&view(name, &fields), &mut Texts::default()))
        };
        self.0.iter().map(node).collect()
    }

    pub fn of(&mut self, name: &str) -> &mut Facts {
        self.0.get_mut(name).unwrap()
    }

    /// What is advertised of the usual resource; 0 where there is none.
    pub fn shares(&self) -> Vec<u32> {
        self.0.values().map(|facts| facts.resources.get(VM).copied().unwrap_or(0)).collect()
    }

    /// What a pass does; its plan.
    pub fn pass(&mut self, requests: &[NodeRequest]) -> Plan {
        self.pass_after(requests, InUse::default())
    }

    /// A pass that knows something of former passes; returns its plan.
    pub fn pass_after(&mut self, requests: &[NodeRequest], in_use: InUse) -> Plan {
        let plan = self.plan_after(requests, in_use);
        for write in &plan.writes {
            self.write(write);
        }
        plan
    }

    /// The plan of a pass that knows something of former passes.
    pub fn plan_after(&self, requests: &[NodeRequest], mut in_use: InUse) -> Plan {
        let mut rounds = 0;
        loop {
            let plan = plan(requests, &self.nodes(), &in_use);
            if plan.uncounted.is_empty() {
                return plan;
            }
            rounds += 1;
            assert!(rounds <= self.0.len(), "each round asks for others");
            for node in &plan.uncounted {
                in_use.add(node.clone(), [(VM.to_owned(), self.0[&**node].runs)].into());
            }
        }
    }

    /// What a write does.
    pub fn write(&mut self, write: &NodeWrite) {
        let facts = self.of(&write.node);
        for (resource, vms) in &write.resources {
            match vms {
                Some(vms) => facts.resources.insert(resource.clone(), *vms),
                None => facts.resources.remove(resource),
            };
        }
        facts.mark.clone_from(&write.mark);
    }
}

impl Facts {
    pub fn worker() -> Self {
        Self { labels: [("node.kubernetes.io/worker".to_owned(), String::new())].into(), ..Self::default() }
    }

    pub fn advertises(resource: &str, vms: u32) -> Self {
        Self { resources: [(resource.to_owned(), vms)].into(), ..Self::worker() }
    }
}
