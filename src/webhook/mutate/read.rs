//! Reads the fields of a Pod that matter, with little memory for any input.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{ANNOTATIONS, LISTS};
use crate::webhook::marker::COUNTED;

/// The most containers, and init containers, of a Pod.
pub const MOST_CONTAINERS: usize = 500;

/// The most resources that one container asks for besides the VM.
pub const MOST_RESOURCES: usize = 64;

/// The fields of a Pod that matter. Everything else in it stays unchanged, known or not.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Pod {
    pub(super) metadata: Option<Metadata>,
    #[serde(default)]
    pub(super) spec: Spec,
}

impl Pod {
    /// Whether it has this runtime class.
    pub(in crate::webhook) fn is_of_class(&self, runtime_class: &str) -> bool {
        self.spec.runtime_class_name.as_deref() == Some(runtime_class)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Metadata {
    pub(super) annotations: Option<Annotations>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) runtime_class_name: Option<String>,
    pub(super) containers: Option<Containers>,
    pub(super) init_containers: Option<Containers>,
    pub(super) resources: Option<Resources>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    #[serde(default)]
    pub(super) name: String,
    pub(super) restart_policy: Option<String>,
    pub(super) resources: Option<Resources>,
}

/// The annotations that the webhook writes, as far as they are there.
#[derive(Clone, Debug, Default)]
pub(super) struct Annotations(BTreeMap<String, String>);

impl Annotations {
    pub(super) fn get(&self, key: &str) -> Option<&String> {
        self.0.get(key)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Containers(pub(super) Vec<Container>);

/// Requests and limits, in JSON. Not a map if the Pod has none there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resources(pub(super) Value);

/// An amount as it is written; a number that is none where neither text nor number is.
struct Scalar(Value);

/// Reads one kind of value, or an input of another kind as `T` says.
struct Reader<T>(PhantomData<T>);

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader::<Self>(PhantomData))
    }
}

impl<'de> Visitor<'de> for Reader<Annotations> {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
        let mut annotations = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == COUNTED || ANNOTATIONS.contains(&key.as_str()) {
                annotations.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Annotations(annotations))
    }
}

impl<'de> Deserialize<'de> for Containers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Reader::<Self>(PhantomData))
    }
}

impl<'de> Visitor<'de> for Reader<Containers> {
    type Value = Containers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of containers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Containers, A::Error> {
        let mut containers = Vec::new();
        while let Some(container) = list.next_element()? {
            if containers.len() == MOST_CONTAINERS {
                return Err(A::Error::custom(format!("there are more than {MOST_CONTAINERS} containers")));
            }
            containers.push(container);
        }
        Ok(Containers(containers))
    }
}

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keep = |key: &str| LISTS.contains(&key);
        deserializer.deserialize_any(Entries { keep, value: PhantomData::<List> }).map(Self)
    }
}

/// The resources of a list of requests or limits.
struct List(Value);

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Entries { keep: |_: &str| true, value: PhantomData::<Scalar> }).map(Self)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Entries { keep: |_: &str| false, value: PhantomData::<Self> }).map(Self)
    }
}

impl From<List> for Value {
    fn from(List(value): List) -> Self {
        value
    }
}

impl From<Scalar> for Value {
    fn from(Scalar(value): Scalar) -> Self {
        value
    }
}

/// Reads any value. Keeps the wanted entries of a map, and nothing of a list.
struct Entries<K, T> {
    keep: K,
    value: PhantomData<T>,
}

impl<'de, K: Fn(&str) -> bool, T: Deserialize<'de> + Into<Value>> Visitor<'de> for Entries<K, T> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if !(self.keep)(&key) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            entries.insert(key, map.next_value::<T>()?.into());
            // One more for the VM: an earlier review added it.
            if entries.len() > MOST_RESOURCES + 1 {
                return Err(A::Error::custom(format!(
                    "a container has more than {MOST_RESOURCES} resources besides the VM"
                )));
            }
        }
        Ok(Value::Object(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(Vec::new()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
}
