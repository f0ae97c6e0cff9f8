//! Reads the fields of a Pod that matter, with little memory for any input.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData, ops::Deref};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{ANNOTATIONS, LISTS};
use crate::webhook::marker::COUNTED;

/// The most containers, and init containers, of a Pod.
pub const MOST_CONTAINERS: usize = 500;

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

/// Requests and limits. Not a map if the Pod has none there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resources<'a>(pub(super) Json<'a>);

/// A value as far as it matters.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json<'a> {
    Text(Text<'a>),
    /// There are few, so that a list of them costs less than a map.
    Map(Vec<(Text<'a>, Self)>),
    /// What is left: null, a number, true or false; or a list, without what it holds.
    Other(Value),
}

impl Json<'_> {
    /// The text, if it is one.
    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The entries, if it is a map.
    pub(super) fn entries(&self) -> Option<&[(Text<'_>, Json<'_>)]> {
        if let Self::Map(entries) = self { Some(entries) } else { None }
    }

    /// The entry of this name, if it is a map that has one. If it has several, the last one counts.
    pub(super) fn get(&self, name: &str) -> Option<&Json<'_>> {
        self.entries()?.iter().rfind(|(other, _)| **other == *name).map(|(_, value)| value)
    }
}

impl From<&Json<'_>> for Value {
    fn from(json: &Json<'_>) -> Self {
        match json {
            Json::Text(text) => Self::from(&**text),
            Json::Map(entries) => {
                Self::Object(entries.iter().map(|(name, value)| (name.to_string(), value.into())).collect())
            }
            Json::Other(value) => value.clone(),
        }
    }
}

/// Reads one kind of value, or an input of another kind as `T` says.
struct Reader<T>(PhantomData<T>);

/// What of a value matters: of resources the lists, of a list all amounts, of an amount nothing that it holds.
#[derive(Clone, Copy)]
enum Level {
    Resources,
    List,
    Amount,
}

impl Level {
    /// That of an entry, if it matters.
    fn of_entry(self, name: &str) -> Option<Self> {
        match self {
            Self::Resources => LISTS.contains(&name).then_some(Self::List),
            Self::List => Some(Self::Amount),
            Self::Amount => None,
        }
    }
}

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
            if let Some(key) = ANNOTATIONS.into_iter().chain([COUNTED]).find(|ours| **ours == *key) {
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

impl<'de: 'a, 'a> Deserialize<'de> for Resources<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Level::Resources.deserialize(deserializer).map(Self)
    }
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json<'de>, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<Text>()? {
            let Some(level) = self.of_entry(&name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            // Else a short text could repeat its lists, and take far more memory than it is long.
            if entries.iter().any(|(other, _)| *other == name) {
                return Err(A::Error::custom("two resources have the same name"));
            }
            entries.push((name, map.next_value_seed(level)?));
            // One more for the VM: an earlier review added it.
            if entries.len() > MOST_RESOURCES + 1 {
                return Err(A::Error::custom(format!(
                    "a container has more than {MOST_RESOURCES} resources besides the VM"
                )));
            }
        }
        Ok(Json::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json<'de>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Json::Other(Value::Array(Vec::new())))
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Other(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Other(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Other(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Other(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        Ok(Json::Other(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Text(value.to_owned().into())))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Text(value.into())))
    }
}
