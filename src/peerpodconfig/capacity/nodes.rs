//! A store of all nodes, kept up to date by a watch.

use std::{
    collections::{BTreeMap, HashSet},
    future::ready,
    sync::Arc,
};

use futures::{Stream, StreamExt};
use kube::{
    Api, Client,
    api::ListParams,
    runtime::watcher::{Event, watcher},
};
use operator_kit::{
    api_call::{self, ApiError},
    projection::reading,
    watch::{paged, retry_watch},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::node::{NODE, Node, NodeView, Texts};

/// All nodes of the cluster. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Nodes(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    known: Notify,
}

#[derive(Debug, Default)]
struct State {
    current: Table,
    /// Whether one list has been complete.
    known: bool,
    /// A list that is still arriving.
    arriving: Arriving,
    texts: Texts,
}

#[derive(Debug, Default)]
struct Arriving {
    /// The part that has arrived.
    listed: Table,
    /// Nodes that were written since it began: the stored state is newer.
    written: HashSet<Arc<str>>,
}

type Table = BTreeMap<Arc<str>, Arc<Node>>;

/// All nodes as they are now *(client required)*.
pub async fn list_nodes(client: &Client) -> Result<Vec<Arc<Node>>, ApiError> {
    let api: Api<NodeView> = Api::all(reading(client, &NODE));
    let (mut nodes, mut texts) = (Vec::new(), Texts::default());
    let take = |view: NodeView| nodes.push(Arc::new(Node::new(&view, &mut texts)));
    api_call::for_each(&api, &ListParams::default(), take).await?;
    Ok(nodes)
}

impl Nodes {
    /// The nodes, and the watch that updates them *(client required)*: a stream without end that must be polled. It yields when
    /// all nodes have been listed, and then at each change of a stored field: a node joined, left, was recreated, became ready or
    /// not, or has other labels, taints, extended resources or another [mark](super::MARK). It does not yield for heartbeats,
    /// cordons and what the operator wrote meanwhile.
    pub fn watch(client: Client) -> (Self, impl Stream<Item = ()> + Send + 'static) {
        let nodes = Self::default();
        let api: Api<NodeView> = Api::all(client);
        let seen = nodes.clone();
        let changes = retry_watch("nodes", watcher(api, paged()))
            .filter_map(move |event| ready(event.ok().filter(|event| seen.take(event)).map(drop)));
        (nodes, changes)
    }

    /// All nodes by name; `None` until all have been listed.
    pub fn snapshot(&self) -> Option<Vec<Arc<Node>>> {
        let state = self.0.state.lock();
        state.known.then(|| state.current.values().cloned().collect())
    }

    /// Whether the operator made any of the nodes advertise something.
    pub fn any_marked(&self) -> bool {
        self.0.state.lock().current.values().any(|node| node.mark().is_some())
    }

    /// Waits until all nodes have been listed. The watch must be polled meanwhile.
    pub async fn wait_until_known(&self) {
        loop {
            let known = self.0.known.notified();
            if self.0.state.lock().known {
                return;
            }
            known.await;
        }
    }

    /// Applies an event of the watch. Returns whether a stored field changed.
    fn take(&self, event: &Event<NodeView>) -> bool {
        let state = &mut *self.0.state.lock();
        match event {
            Event::Init => state.arriving = Arriving::default(),
            Event::InitApply(view) => {
                let node = Node::new(view, &mut state.texts);
                state.arriving.listed.insert(node.name().clone(), Arc::new(node));
            }
            Event::InitDone => {
                let Arriving { listed, written } = std::mem::take(&mut state.arriving);
                let mut before = std::mem::replace(&mut state.current, listed);
                // A node that was written since the list began may be newer than the list has it. For all other nodes the list
                // counts, even at a lower version: a backup of etcd may have been restored.
                for name in written {
                    if let Some(node) = before.remove(&name)
                        && let Some(listed) = state.current.get_mut(&name)
                        && !listed.supersedes(&node)
                    {
                        *listed = node;
                    }
                }
                state.known = true;
                self.0.known.notify_waiters();
                return true;
            }
            Event::Apply(view) => {
                let node = Node::new(view, &mut state.texts);
                match state.current.get_mut(node.name()) {
                    Some(before) if !node.supersedes(before) => {}
                    Some(before) => {
                        let matters = node.differs(before);
                        *before = Arc::new(node);
                        return matters;
                    }
                    None => {
                        state.current.insert(node.name().clone(), Arc::new(node));
                        return true;
                    }
                }
            }
            Event::Delete(view) => {
                let name = view.metadata.name.as_deref().unwrap_or_default();
                state.arriving.written.remove(name);
                return state.current.remove(name).is_some();
            }
        }
        false
    }

    /// Applies the answer to a write before the watch delivers it, so that the next plan uses it and nothing is written twice. It
    /// does not restore a node that was removed.
    pub(super) fn wrote(&self, view: &NodeView) {
        let state = &mut *self.0.state.lock();
        let node = Node::new(view, &mut state.texts);
        if let Some(before) = state.current.get_mut(node.name())
            && before.uid() == node.uid()
            && node.supersedes(before)
        {
            // If no list is arriving, the next one clears this.
            state.arriving.written.insert(node.name().clone());
            *before = Arc::new(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::node::tests::view, *};

    const VM: &str = "kata.peerpods.io/vm";

    fn with(names: &[&str]) -> Nodes {
        let nodes = Nodes::default();
        assert!(!nodes.take(&Event::Init));
        for name in names {
            assert!(!nodes.take(&Event::InitApply(view(name, &json!({ "version": 1 })))));
        }
        assert!(nodes.snapshot().is_none() && nodes.take(&Event::InitDone));
        nodes
    }

    fn apply(nodes: &Nodes, name: &str, fields: &Value) -> bool {
        nodes.take(&Event::Apply(view(name, fields)))
    }

    fn names(nodes: &Nodes) -> Vec<String> {
        nodes.snapshot().unwrap().iter().map(|node| node.name().to_string()).collect()
    }

    fn capacity(nodes: &Nodes, name: &str) -> Option<u32> {
        nodes.snapshot().unwrap().iter().find(|node| &**node.name() == name).unwrap().level(VM).capacity
    }

    #[test]
    fn only_changes_of_kept_fields_are_reported() {
        let nodes = with(&["a"]);
        assert!(!apply(&nodes, "a", &json!({ "version": 2 })), "a heartbeat");
        for (version, (what, fields)) in (3..).zip([
            ("labels", json!({ "labels": { "zone": "x" } })),
            ("advertised", json!({ "labels": { "zone": "x" }, "capacity": { VM: "3" } })),
            ("reset", json!({ "labels": { "zone": "x" }, "capacity": { VM: "0" } })),
            ("stripped", json!({ "labels": { "zone": "x" } })),
            ("marked", json!({ "labels": { "zone": "x" }, "mark": VM })),
            ("tainted", json!({ "taints": [{ "key": "a", "effect": "NoSchedule" }], "mark": VM })),
            ("lost", json!({ "labels": { "zone": "x" }, "mark": VM, "ready": "Unknown" })),
            ("recreated", json!({ "labels": { "zone": "x" }, "mark": VM, "uid": "another" })),
        ]) {
            let mut fields = fields;
            fields["version"] = version.into();
            assert!(apply(&nodes, "a", &fields), "{what}");
            assert!(!apply(&nodes, "a", &fields), "{what} again");
        }
        assert!(apply(&nodes, "b", &json!({})), "joined");
        assert_eq!(names(&nodes), ["a", "b"]);
        assert!(nodes.take(&Event::Delete(view("b", &json!({})))), "left");
        assert!(!nodes.take(&Event::Delete(view("b", &json!({})))));
    }

    #[test]
    fn a_write_counts_until_a_newer_version_is_seen() {
        let nodes = with(&["a"]);
        nodes.wrote(&view("a", &json!({ "version": 5, "capacity": { VM: "3" } })));
        assert!(!apply(&nodes, "a", &json!({ "version": 4 })), "an older state");
        assert!(!apply(&nodes, "a", &json!({ "version": 5, "capacity": { VM: "3" } })), "the write itself");
        assert_eq!(capacity(&nodes, "a"), Some(3));
        assert!(apply(&nodes, "a", &json!({ "version": 6, "capacity": { VM: "0" } })));
        nodes.wrote(&view("a", &json!({ "version": 5, "capacity": { VM: "3" } })));
        assert_eq!(capacity(&nodes, "a"), Some(0), "an answer that came late");
    }

    #[test]
    fn a_node_that_is_gone_is_not_written_back() {
        let nodes = with(&["a", "b"]);
        nodes.take(&Event::Delete(view("a", &json!({}))));
        nodes.wrote(&view("a", &json!({ "version": 9 })));
        nodes.wrote(&view("b", &json!({ "version": 9, "uid": "an older one", "capacity": { VM: "3" } })));
        assert_eq!((names(&nodes), capacity(&nodes, "b")), (vec!["b".to_owned()], None));
    }

    #[test]
    fn a_new_list_replaces_all_but_what_was_written_since() {
        let nodes = with(&["a", "gone"]);
        nodes.take(&Event::Init);
        nodes.take(&Event::InitApply(view("a", &json!({ "version": 2 }))));
        nodes.take(&Event::InitApply(view("new", &json!({ "version": 2 }))));
        nodes.wrote(&view("a", &json!({ "version": 3, "capacity": { VM: "3" } })));
        assert_eq!(names(&nodes), ["a", "gone"]);
        assert!(nodes.take(&Event::InitDone));
        assert_eq!((names(&nodes), capacity(&nodes, "a")), (vec!["a".into(), "new".into()], Some(3)));
    }

    #[test]
    fn a_new_list_replaces_earlier_state_of_any_version() {
        let nodes = with(&["a", "b"]);
        for (name, version) in [("a", 8), ("b", 9)] {
            nodes.wrote(&view(name, &json!({ "version": version, "capacity": { VM: "3" } })));
        }
        // A backup of etcd was restored.
        nodes.take(&Event::Init);
        nodes.take(&Event::InitApply(view("a", &json!({ "version": 2 }))));
        nodes.take(&Event::InitApply(view("b", &json!({ "version": 2 }))));
        nodes.wrote(&view("b", &json!({ "version": 10, "capacity": { VM: "4" } })));
        nodes.take(&Event::InitDone);
        assert_eq!((capacity(&nodes, "a"), capacity(&nodes, "b")), (None, Some(4)));
        nodes.take(&Event::Init);
        nodes.take(&Event::InitApply(view("a", &json!({ "version": 2 }))));
        nodes.take(&Event::InitApply(view("b", &json!({ "version": 3 }))));
        nodes.take(&Event::InitDone);
        assert_eq!(capacity(&nodes, "b"), None, "what was written during an earlier list");
    }
}
