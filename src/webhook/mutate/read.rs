//! Reads the fields of a Pod that matter, with little memory for any input.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData, ops::Deref};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::LISTS;
use crate::webhook::{
    MOST_CONTAINERS,
    marker::COUNTED,
    sizing::{ANNOTATIONS, INSTANCE_TYPE},
};

/// The most resources that one container asks for besides the VM.
pub const MOST_RESOURCES: usize = 64;

/// A text of the input, copied only if it has escapes. A bare [`Cow`] in an [`Option`] or as a key is always copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(in crate::webhook) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The fields of a Pod that matter. Everything else in it stays unchanged, known or not.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Pod<'a> {
    #[serde(borrow)]
    pub(super) metadata: Option<Metadata<'a>>,
    #[serde(borrow, default)]
    pub(super) spec: Spec<'a>,
}

impl Pod<'_> {
    /// Whether it has this runtime class.
    pub(in crate::webhook) fn is_of_class(&self, runtime_class: &str) -> bool {
        self.spec.runtime_class_name.as_deref() == Some(runtime_class)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Metadata<'a> {
    #[serde(borrow)]
    pub(super) annotations: Option<Annotations<'a>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec<'a> {
    #[serde(borrow)]
    pub(super) runtime_class_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) containers: Option<Containers<'a>>,
    #[serde(borrow)]
    pub(super) init_containers: Option<Containers<'a>>,
    #[serde(borrow)]
    pub(super) resources: Option<Resources<'a>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow)]
    pub(super) restart_policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) resources: Option<Resources<'a>>,
}

/// The annotations that the webhook writes, as far as they are there.
#[derive(Clone, Debug, Default)]
pub(super) struct Annotations<'a>(BTreeMap<&'static str, Text<'a>>);

impl Annotations<'_> {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(Deref::deref)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Containers<'a>(pub(super) Vec<Container<'a>>);

/// The resources that a container or the Pod requests.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Resources<'a> {
    #[serde(borrow)]
    requests: Option<Amounts<'a>>,
    #[serde(borrow)]
    limits: Option<Amounts<'a>>,
}

impl<'a> Resources<'a> {
    /// The resources in one of the [`LISTS`], with their amounts. `None` has none.
    pub(super) fn list<'p>(resources: Option<&'p Self>, name: &str) -> &'p [(Text<'a>, Text<'a>)] {
        let [requests, _] = LISTS;
        let list =
            resources.and_then(|it| if name == requests { it.requests.as_ref() } else { it.limits.as_ref() });
        list.map_or(&[], |Amounts(entries)| entries)
    }
}

/// There are few, so that a list of them costs less than a map.
#[derive(Clone, Debug, Default)]
struct Amounts<'a>(Vec<(Text<'a>, Text<'a>)>);

/// An amount as the API server writes it, or a number.
struct Amount<'a>(Text<'a>);

/// Reads a `T`.
struct Reader<T>(PhantomData<T>);

impl<'de: 'a, 'a> Deserialize<'de> for Annotations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader::<Self>(PhantomData))
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Reader<Annotations<'a>> {
    type Value = Annotations<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations<'a>, A::Error> {
        let mut annotations = BTreeMap::new();
        while let Some(key) = map.next_key::<Text>()? {
            if let Some(key) =
                ANNOTATIONS.into_iter().chain([COUNTED, INSTANCE_TYPE]).find(|ours| **ours == *key)
            {
                annotations.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Annotations(annotations))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Containers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Reader::<Self>(PhantomData))
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Reader<Containers<'a>> {
    type Value = Containers<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of containers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Containers<'a>, A::Error> {
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

impl<'de: 'a, 'a> Deserialize<'de> for Amounts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader::<Self>(PhantomData))
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Reader<Amounts<'a>> {
    type Value = Amounts<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of resources")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amounts<'a>, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<Text>()? {
            if entries.iter().any(|(other, _)| *other == name) {
                return Err(A::Error::custom("two resources have the same name"));
            }
            let Amount(amount) = map.next_value()?;
            entries.push((name, amount));
            // One more for the VM: an earlier review added it.
            if entries.len() > MOST_RESOURCES + 1 {
                return Err(A::Error::custom(format!(
                    "a container has more than {MOST_RESOURCES} resources besides the VM"
                )));
            }
        }
        Ok(Amounts(entries))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Amount<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader::<Self>(PhantomData))
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Reader<Amount<'a>> {
    type Value = Amount<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity, such as 500m, 2 or 4Gi")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Amount<'a>, E> {
        Ok(Amount(Text(text.into())))
    }

    fn visit_str<E>(self, text: &str) -> Result<Amount<'a>, E> {
        Ok(Amount(Text(text.to_owned().into())))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Amount<'a>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Amount<'a>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Amount<'a>, E> {
        self.visit_str(&number.to_string())
    }
}
