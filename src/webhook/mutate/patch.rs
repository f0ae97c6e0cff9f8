//! A JSON patch (RFC 6902) that borrows from the Pod which it changes.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

/// The changes, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Patch<'a>(Vec<Operation<'a>>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation<'a> {
    Add { path: String, value: Value<'a> },
    Remove { path: String },
}

/// What is added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Value<'a> {
    Text(Cow<'a, str>),
    /// An object whose members are texts.
    #[serde(serialize_with = "object")]
    Object(Vec<(&'a str, &'a str)>),
}

fn object<S: Serializer>(members: &[(&str, &str)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(members.iter().copied())
}

impl<'a> Patch<'a> {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a member to an object, or replaces the one of that name. The path is the one of these parts, each escaped.
    pub(super) fn set(&mut self, path: &[&str], value: Value<'a>) {
        self.0.push(Operation::Add { path: path.concat(), value });
    }

    /// Removes a member, which must be there.
    pub(super) fn remove(&mut self, path: &[&str]) {
        self.0.push(Operation::Remove { path: path.concat() });
    }
}
