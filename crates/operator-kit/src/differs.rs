//! Whether applying an object would change the stored one. If not, the operator writes nothing.

use serde_json::{Map, Value};

use crate::quantity::Amount;

/// The field that others may add to.
const NAMESPACE_SELECTOR: &str = "namespaceSelector";

/// The API server's defaults for missing parts of a list's key.
const DEFAULT_PROTOCOL: (&str, &str) = ("protocol", "TCP");

/// Whether a server-side apply of `desired` by `manager`, forced, would change anything that people see in `current`.
///
/// It would if a field of `desired` is missing or has another value, or if `manager` applied a field before that `desired` no longer
/// has. Defaults of the API server and fields of others are no difference: the `managedFields` of `current`, which must be there,
/// say which field is whose, and by which key lists are merged. Different notations of one amount in `limits` and `requests` are
/// equal, an empty object or list equals a missing one, and the order of merged lists does not matter.
///
/// Others may add `matchExpressions` to a `namespaceSelector`, although it is replaced as a whole: some clusters keep webhooks out of
/// their own namespaces so. The expressions on labels that `desired` names must be as desired.
///
/// An empty object claims nothing: whatever others put there is no difference. So leave a map that is replaced as a whole, such as a
/// `nodeSelector`, out of `desired` when it is empty. Otherwise what was there before stays.
///
/// Never equal, and so written again each time, are the `stringData` of a Secret, which no API server keeps, an amount outside `limits`
/// and `requests` in another notation than the API server's, such as `1024Mi` as the `sizeLimit` of an `emptyDir`, and the default of a
/// field that the API server leaves out of its answers, such as `hostNetwork: false` or an empty `value` of a variable: use `data`, write
/// `1Gi`, and leave out such a field.
///
/// Parts that are replaced as a whole, such as an item of `tolerations`, are compared as a whole, so `desired` must have the API
/// server's defaults in them. If `manager` has applied nothing yet and `current` has further fields, the result is true once; after
/// that write the owners are known.
pub fn differs(current: &Value, desired: &Value, manager: &str) -> bool {
    let empty = Map::new();
    let Some(desired) = desired.as_object() else { return true };
    let owned = applied_by(current, manager).unwrap_or(&empty);
    desired.iter().any(|(name, desired)| {
        let owned = owned.get(&format!("f:{name}"));
        match (name.as_str(), desired.as_object()) {
            // It never belongs to one manager alone, even if none has applied anything.
            ("metadata", Some(desired)) => {
                let owned = owned.and_then(Value::as_object).unwrap_or(&empty);
                fields_differ(&current[name], desired, owned, false)
            }
            _ => value_differs(&current[name], desired, owned, false),
        }
    }) || owned.keys().any(|name| !has_field(desired, name))
}

/// The set of fields that this manager applied last, in the form of `fieldsV1`: an object's fields as `f:NAME`, items of
/// a list as `k:KEY` or `v:VALUE`, and nothing below what is applied as a whole.
fn applied_by<'a>(current: &'a Value, manager: &str) -> Option<&'a Map<String, Value>> {
    let entries = current["metadata"]["managedFields"].as_array()?;
    let mut own = entries.iter().filter(|entry| {
        entry["manager"] == manager && entry["operation"] == "Apply" && entry["subresource"].is_null()
    });
    own.next()?["fieldsV1"].as_object()
}

fn has_field(object: &Map<String, Value>, owned: &str) -> bool {
    owned.strip_prefix("f:").is_none_or(|name| object.contains_key(name))
}

/// `amounts`: whether the values are those of resources.
fn value_differs(current: &Value, desired: &Value, owned: Option<&Value>, amounts: bool) -> bool {
    let owned = owned.and_then(Value::as_object);
    let merged = |prefix: &str| owned.filter(|it| it.keys().any(|key| key.starts_with(prefix)));
    match desired {
        Value::Object(fields) => match merged("f:") {
            Some(owned) => fields_differ(current, fields, owned, amounts),
            // It claims no field, and takes none from others.
            None if fields.is_empty() => !(current.is_object() || current.is_null()),
            None => !same(current, desired, amounts),
        },
        Value::Array(items) => match (merged("k:"), merged("v:")) {
            (Some(owned), _) => items_differ(current, items, owned),
            (None, Some(owned)) => members_differ(current, items, owned),
            (None, None) => !same(current, desired, amounts),
        },
        _ => !same(current, desired, amounts),
    }
}

fn fields_differ(
    current: &Value,
    desired: &Map<String, Value>,
    owned: &Map<String, Value>,
    amounts: bool,
) -> bool {
    owned.keys().any(|name| !has_field(desired, name))
        || desired.iter().any(|(name, desired)| {
            if name == NAMESPACE_SELECTOR {
                return selector_differs(&current[name], desired);
            }
            let amounts = amounts || (desired.is_object() && (name == "limits" || name == "requests"));
            value_differs(&current[name], desired, owned.get(&format!("f:{name}")), amounts)
        })
}

/// Whether a selector lacks something, or has other expressions on the same labels. Expressions of others on other labels, which
/// narrow the selection, do not count.
fn selector_differs(current: &Value, desired: &Value) -> bool {
    let expressions = |selector: &Value| selector["matchExpressions"].as_array().cloned().unwrap_or_default();
    let wanted = expressions(desired);
    let is_anothers = |it: &Value| !wanted.iter().any(|wanted| wanted["key"] == it["key"]);
    let mut own = expressions(current);
    own.retain(|it| !is_anothers(it));
    let mut rest = current.clone();
    if let Some(rest) = rest.as_object_mut() {
        rest.insert("matchExpressions".to_owned(), own.into());
    }
    !same(&rest, desired, false)
}

/// Lists of objects that some of their fields identify.
fn items_differ(current: &Value, desired: &[Value], owned: &Map<String, Value>) -> bool {
    let keys = owned.iter().filter_map(|(key, owned)| Some((key.strip_prefix("k:")?, owned)));
    let keys: Vec<(Value, &Value)> =
        keys.filter_map(|(key, owned)| Some((serde_json::from_str(key).ok()?, owned))).collect();
    let current = current.as_array().map(Vec::as_slice).unwrap_or_default();
    let find = |items: &'_ [Value], key: &Value| items.iter().position(|item| has_key(item, key));
    keys.iter().any(|(key, _)| find(desired, key).is_none())
        || desired.iter().any(|desired| {
            let Some((key, owned)) = keys.iter().find(|(key, _)| has_key(desired, key)) else {
                return !current.iter().any(|current| same(current, desired, false));
            };
            find(current, key).is_none_or(|index| value_differs(&current[index], desired, Some(owned), false))
        })
}

fn has_key(item: &Value, key: &Value) -> bool {
    key.as_object().into_iter().flatten().all(|(name, value)| match &item[name] {
        Value::Null => (name.as_str(), value.as_str()) == (DEFAULT_PROTOCOL.0, Some(DEFAULT_PROTOCOL.1)),
        other => other == value,
    })
}

/// Lists of distinct values.
fn members_differ(current: &Value, desired: &[Value], owned: &Map<String, Value>) -> bool {
    let members = owned.keys().filter_map(|key| key.strip_prefix("v:"));
    let mut members = members.filter_map(|value| serde_json::from_str::<Value>(value).ok());
    let current = current.as_array().map(Vec::as_slice).unwrap_or_default();
    members.any(|member| !desired.contains(&member)) || desired.iter().any(|it| !current.contains(it))
}

/// Whether two values mean the same, as a whole.
fn same(a: &Value, b: &Value, amounts: bool) -> bool {
    match (a, b) {
        (Value::Object(fields), Value::Object(others)) => {
            let names = fields.keys().chain(others.keys());
            let value = |object: &Map<String, Value>, name| object.get(name).cloned().unwrap_or_default();
            names.into_iter().all(|name| same(&value(fields, name), &value(others, name), amounts))
        }
        (Value::Array(items), Value::Array(others)) => {
            items.len() == others.len() && items.iter().zip(others).all(|(a, b)| same(a, b, amounts))
        }
        (Value::String(text), Value::String(other)) if amounts => {
            text == other || text.parse::<Amount>().is_ok_and(|amount| other.parse() == Ok(amount))
        }
        // `10.0` of a typed object is `10` in the API server's answer.
        (Value::Number(a), Value::Number(b)) if a.is_f64() != b.is_f64() => a.as_f64() == b.as_f64(),
        (a, b) => a == b || (is_nothing(a) && is_nothing(b)),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
