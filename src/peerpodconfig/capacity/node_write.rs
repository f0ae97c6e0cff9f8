//! A planned write to a node, and the results of the writes of a pass *(no client)*.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// One write to one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeWrite {
    /// The node's name.
    pub node: Arc<str>,
    /// The node's uid, so that the write does not reach a node that was recreated meanwhile.
    pub uid: Box<str>,
    /// Extended resources, each with the number to advertise; `None` removes the key.
    pub resources: BTreeMap<String, Option<u32>>,
    /// The [mark](super::MARK) to leave; `None` removes it.
    pub mark: Option<String>,
}

/// The results of the writes of one pass.
#[derive(Debug, Default)]
pub struct Written {
    /// The nodes that were written to, and those that may have been written to, as no answer came.
    pub reached: Vec<Arc<str>>,
    /// Nodes that others reset again and again, and that wait to be corrected, by name.
    pub contested: Vec<Arc<str>>,
    /// Nodes whose writes failed, in this pass or a former one, and the errors, by name. They wait for another try.
    pub failed: Vec<(Arc<str>, String)>,
    /// When another pass is due for all of these.
    pub again: Option<Duration>,
}
