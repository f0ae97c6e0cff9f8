//! Which nodes each request selects, and which of these it has. Pure *(no client)*.

use std::{collections::HashMap, sync::Arc};

use super::{super::configs::precedence, node::Node, node_request::NodeRequest};

/// The nodes of all requests. Of those that select a node, the oldest has it.
#[derive(Debug)]
pub(super) struct Assignment<'a> {
    pub(super) requests: &'a [NodeRequest],
    /// What each request selects, in the order of the requests.
    pub(super) selected: Vec<Vec<Selected<'a>>>,
    /// The nodes that no request selects.
    pub(super) unselected: Vec<&'a Arc<Node>>,
}

/// A node that a request selects.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Selected<'a> {
    pub(super) node: &'a Arc<Node>,
    /// The name of the older request that has the node; `None`: the request itself has it.
    pub(super) taken_by: Option<&'a str>,
}

impl<'a> Assignment<'a> {
    pub(super) fn of(requests: &'a [NodeRequest], nodes: &'a [Arc<Node>]) -> Self {
        let mut order: Vec<_> = (0..requests.len()).filter(|&index| !requests[index].deleted).collect();
        order.sort_by_key(|&index| precedence(requests[index].created, &requests[index].name));
        let selections: Vec<_> = order
            .iter()
            .filter_map(|&index| Some((index, requests[index].selection.as_ref().ok()?)))
            .collect();
        let (mut selected, mut unselected) = (vec![Vec::new(); requests.len()], Vec::new());
        for node in nodes {
            let mut selecting =
                selections.iter().filter(|(_, selection)| selection.matches(|key| node.label(key)));
            let Some(&(oldest, _)) = selecting.next() else {
                unselected.push(node);
                continue;
            };
            selected[oldest].push(Selected { node, taken_by: None });
            let taken_by = Some(requests[oldest].name.as_str());
            for &(younger, _) in selecting {
                selected[younger].push(Selected { node, taken_by });
            }
        }
        Self { requests, selected, unselected }
    }

    /// The nodes that each request has, in the order of the requests.
    pub(super) fn shares(&self) -> impl Iterator<Item = Vec<&'a Arc<Node>>> {
        self.selected.iter().map(|selected| {
            selected.iter().filter(|it| it.taken_by.is_none()).map(|it| it.node).collect::<Vec<_>>()
        })
    }
}

/// The request that has each node, by the node's name. A node that no request selects is left out.
pub fn owners<'a>(requests: &'a [NodeRequest], nodes: &'a [Arc<Node>]) -> HashMap<&'a str, &'a NodeRequest> {
    let assignment = Assignment::of(requests, nodes);
    let shares = requests.iter().zip(assignment.shares());
    shares.flat_map(|(request, share)| share.into_iter().map(move |node| (&**node.name(), request))).collect()
}
