//! How many peer pods run on nodes, as far as they were counted *(no client)*.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// How many peer pods run on nodes, by the extended resource that they ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    counted: HashMap<Arc<str>, BTreeMap<String, u32>>,
    /// Whether nodes without an entry have none.
    complete: bool,
    /// What was counted a while ago.
    remembered: HashMap<Arc<str>, BTreeMap<String, u32>>,
}

impl InUse {
    /// Of every node.
    pub fn of_all(counted: HashMap<Arc<str>, BTreeMap<String, u32>>) -> Self {
        Self { counted, complete: true, remembered: HashMap::new() }
    }

    /// An older count: it can keep a share as it is, and never lowers one.
    pub fn remembered(remembered: HashMap<Arc<str>, BTreeMap<String, u32>>) -> Self {
        Self { remembered, ..Self::default() }
    }

    /// Of a further node.
    pub fn add(&mut self, node: Arc<str>, resources: BTreeMap<String, u32>) {
        self.counted.insert(node, resources);
    }

    /// What was counted, by node.
    pub(super) fn counted(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<String, u32>)> {
        self.counted.iter()
    }

    /// Whether every node was counted.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn is_counted(&self, node: &str) -> bool {
        self.complete || self.counted.contains_key(node)
    }

    /// As far as is known.
    pub(super) fn of(&self, node: &str, resource: &str) -> u32 {
        let remembered = || self.remembered.get(node).filter(|_| !self.complete);
        let resources = self.counted.get(node).or_else(remembered);
        resources.and_then(|resources| resources.get(resource)).copied().unwrap_or(0)
    }
}
