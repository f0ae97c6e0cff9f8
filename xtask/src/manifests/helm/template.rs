//! An object as a template: its tree, in which a user's values replace single places.
//!
//! Places are given by JSON pointers into the object, so a template cannot drift from the installation without helm: a pointer to a
//! place that does not exist is an error. Everything else is printed as the object has it.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::Files;

/// A part of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// An unchanged value, or a map or list without replaced places.
    Plain(Value),
    /// A map.
    Map(Vec<Entry>),
    /// A list.
    List(Vec<Entry>),
    /// The scalar that this expression gives.
    Scalar(String),
    /// The map or list whose YAML this expression gives.
    Yaml(String),
}

/// A part of a map or list.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    /// One part, with its key in a map, perhaps under a condition.
    One { key: Option<String>, node: Node, when: Option<String> },
    /// The parts of the map or list that this expression gives; none if it is empty.
    Further(String),
}

impl Node {
    /// The tree of this object. The expression of a mark replaces each string that equals the mark.
    pub(super) fn of(object: &Value, marks: &[(&str, &str)]) -> Result<Self> {
        let is_marked = |text: &str| marks.iter().any(|(mark, _)| text.contains(mark));
        Ok(match object {
            Value::String(text) => match marks.iter().find(|(mark, _)| text == mark) {
                Some((_, expression)) => Self::Scalar((*expression).to_owned()),
                None if is_marked(text) => bail!("what a user says is only a part of {text:?}"),
                None => Self::Plain(object.clone()),
            },
            Value::Object(fields) => {
                let parts =
                    fields.iter().map(|(key, value)| Ok((Some(key.clone()), Self::of(value, marks)?)));
                Self::whole(object, parts.collect::<Result<_>>()?, Self::Map)
            }
            Value::Array(items) => {
                let parts = items.iter().map(|value| Ok((None, Self::of(value, marks)?)));
                Self::whole(object, parts.collect::<Result<_>>()?, Self::List)
            }
            other => Self::Plain(other.clone()),
        })
    }

    /// A map or list of these parts. It is plain if all parts are.
    fn whole(
        value: &Value,
        parts: Vec<(Option<String>, Self)>,
        make: impl FnOnce(Vec<Entry>) -> Self,
    ) -> Self {
        if parts.iter().all(|(_, node)| matches!(node, Self::Plain(_))) {
            return Self::Plain(value.clone());
        }
        make(parts.into_iter().map(|(key, node)| Entry::One { key, node, when: None }).collect())
    }

    /// Replaces a place.
    pub(super) fn set(&mut self, pointer: &str, node: Self) -> Result<()> {
        *self.at(pointer)? = node;
        Ok(())
    }

    /// Makes a place depend on a condition.
    pub(super) fn only_if(&mut self, pointer: &str, condition: &str) -> Result<()> {
        let (parent, name) =
            pointer.rsplit_once('/').with_context(|| format!("{pointer:?} has no parent"))?;
        let entries = self.at(parent)?.entries()?;
        match find(entries, name).with_context(|| format!("the object has no {pointer}"))? {
            Entry::One { when, .. } => *when = Some(condition.to_owned()),
            Entry::Further(_) => bail!("{pointer} is no single part"),
        }
        Ok(())
    }

    /// Adds a part to a map or, without a key, to a list, under a condition.
    pub(super) fn add(&mut self, pointer: &str, key: Option<&str>, node: Self, when: &str) -> Result<()> {
        let (key, when) = (key.map(str::to_owned), Some(when.to_owned()));
        self.at(pointer)?.entries()?.push(Entry::One { key, node, when });
        Ok(())
    }

    /// Adds a part to a map if the expression is not empty: its YAML.
    pub(super) fn optional(&mut self, pointer: &str, key: &str, expression: &str) -> Result<()> {
        self.add(pointer, Some(key), Self::Yaml(format!("toYaml ({expression})")), expression)
    }

    /// Adds the parts of this expression to a map or list.
    pub(super) fn extend(&mut self, pointer: &str, expression: &str) -> Result<()> {
        self.at(pointer)?.entries()?.push(Entry::Further(expression.to_owned()));
        Ok(())
    }

    /// The pointer to the item of a list that has this name.
    pub(super) fn named(&mut self, pointer: &str, name: &str) -> Result<String> {
        let is_named = |entry: &Entry| matches!(entry, Entry::One { node, .. } if node.is_named(name));
        let place = self.at(pointer)?.entries()?.iter().position(is_named);
        Ok(format!("{pointer}/{}", place.with_context(|| format!("{pointer} has no {name}"))?))
    }

    /// Whether it is a map with this name.
    fn is_named(&self, name: &str) -> bool {
        match self {
            Self::Plain(value) => value["name"] == name,
            Self::Map(entries) => entries.iter().any(|entry| match entry {
                Entry::One { key: Some(key), node: Self::Plain(value), .. } => key == "name" && value == name,
                _ => false,
            }),
            Self::List(_) | Self::Scalar(_) | Self::Yaml(_) => false,
        }
    }

    fn at(&mut self, pointer: &str) -> Result<&mut Self> {
        pointer.split('/').skip(1).try_fold(self, |node, name| {
            match find(node.entries()?, name).with_context(|| format!("the object has no {pointer}"))? {
                Entry::One { node, .. } => Ok(node),
                Entry::Further(_) => bail!("{pointer} is no single part"),
            }
        })
    }

    /// The parts of a map or list.
    fn entries(&mut self) -> Result<&mut Vec<Entry>> {
        if let Self::Plain(value) = self {
            let one = |key, value: &Value| Entry::One { key, node: Self::Plain(value.clone()), when: None };
            *self = match value {
                Value::Object(fields) => {
                    Self::Map(fields.iter().map(|(key, value)| one(Some(key.clone()), value)).collect())
                }
                Value::Array(items) => Self::List(items.iter().map(|value| one(None, value)).collect()),
                scalar => bail!("{scalar} is neither a map nor a list"),
            };
        }
        match self {
            Self::Map(entries) | Self::List(entries) => Ok(entries),
            other => bail!("{other:?} is neither a map nor a list"),
        }
    }

    /// The template's text, each line `indent` to the right.
    pub(super) fn print(&self, indent: usize) -> Result<String> {
        let margin = " ".repeat(indent);
        Ok(match self {
            Self::Plain(value) => plain(value, &margin)?,
            Self::Scalar(expression) => format!("{margin}{{{{ {expression} }}}}\n"),
            Self::Yaml(expression) => format!("{margin}{{{{- {expression} | nindent {indent} }}}}\n"),
            Self::Map(entries) | Self::List(entries) => {
                let mut text = String::new();
                for entry in entries {
                    text.push_str(&entry.print(indent)?);
                }
                text
            }
        })
    }
}

fn find<'a>(entries: &'a mut [Entry], name: &str) -> Option<&'a mut Entry> {
    let is_list = matches!(entries.first(), Some(Entry::One { key: None, .. }));
    if is_list {
        return entries.get_mut(name.parse::<usize>().ok()?);
    }
    // As in every JSON pointer, a slash in a name is `~1`.
    let name = name.replace("~1", "/");
    entries.iter_mut().find(|entry| matches!(entry, Entry::One { key: Some(key), .. } if *key == name))
}

impl Entry {
    fn print(&self, indent: usize) -> Result<String> {
        let margin = " ".repeat(indent);
        match self {
            Self::Further(expression) => Ok(format!(
                "{margin}{{{{- with {expression} }}}}\n{margin}{{{{- toYaml . | nindent {indent} }}}}\n{margin}{{{{- end }}}}\n"
            )),
            Self::One { key, node, when } => {
                let text = match key {
                    Some(key) => member(&plain_scalar(key)?, node, indent)?,
                    None => item(node, indent)?,
                };
                Ok(match when {
                    Some(condition) => {
                        format!("{margin}{{{{- if {condition} }}}}\n{text}{margin}{{{{- end }}}}\n")
                    }
                    None => text,
                })
            }
        }
    }
}

/// `key: value`, the value beside its key or below it.
fn member(key: &str, node: &Node, indent: usize) -> Result<String> {
    let margin = " ".repeat(indent);
    let value = match node {
        Node::Plain(value) => {
            // The YAML library knows which strings need quotes or lines of their own.
            let object = Value::Object([("k".to_owned(), value.clone())].into_iter().collect());
            let text = plain(&object, &margin)?;
            return Ok(text.replacen(&format!("{margin}k:"), &format!("{margin}{key}:"), 1));
        }
        Node::Scalar(expression) => format!(" {{{{ {expression} }}}}\n"),
        Node::Yaml(_) | Node::Map(_) => format!("\n{}", node.print(indent + 2)?),
        Node::List(_) => format!("\n{}", node.print(indent)?),
    };
    Ok(format!("{margin}{key}:{value}"))
}

/// `- value`.
fn item(node: &Node, indent: usize) -> Result<String> {
    let margin = " ".repeat(indent);
    let text = node.print(indent + 2)?;
    let first = text.strip_prefix(&format!("{margin}  ")).context("a part begins at its margin")?;
    if first.starts_with("{{-") {
        bail!("an item of a list begins with a condition: {first}");
    }
    Ok(format!("{margin}- {first}"))
}

fn plain_scalar(text: &str) -> Result<String> {
    Ok(serde_yaml::to_string(text)?.trim_end().to_owned())
}

fn plain(value: &Value, margin: &str) -> Result<String> {
    let mut indented = String::new();
    // Text that looks like a template is printed by one, so that helm does not evaluate it.
    for line in serde_yaml::to_string(value)?.replace("{{", "{{ \"{{\" }}").lines() {
        if !line.is_empty() {
            indented.push_str(margin);
            indented.push_str(line);
        }
        indented.push('\n');
    }
    Ok(indented)
}

/// The first line of each generated template.
pub(super) const NOTE: &str = "{{- /* Generated by `cargo xtask manifests`; do not edit. */ -}}\n";

/// A file of templates: each is a document, perhaps under a condition.
pub(super) fn file(templates: &[(Node, Option<String>)]) -> Result<String> {
    let mut text = String::from(NOTE);
    for (node, condition) in templates {
        let document = node.print(0)?;
        match condition {
            Some(condition) => {
                writeln!(text, "{{{{- if {condition} }}}}\n---\n{document}{{{{- end }}}}")?;
            }
            None => write!(text, "---\n{document}")?,
        }
    }
    Ok(text)
}

/// A file with a template of this name, which others include.
pub(super) fn define(name: &str, node: &Node) -> Result<String> {
    Ok(format!("{NOTE}{{{{- define \"{name}\" -}}}}\n{}{{{{- end }}}}\n", node.print(0)?))
}

/// Files of the chart, given by their path in it.
pub(super) fn in_chart(files: impl IntoIterator<Item = (String, String)>) -> Files {
    files.into_iter().map(|(path, text)| (format!("helm/peerpod-operator/{path}").into(), text)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_taken_and_the_rest_is_as_it_was() {
        let object = json!({ "a": { "b": 1, "c": "MARK" }, "l": [{ "x": 1, "y": 2 }], "s": "{{ $labels.x }}", "t": "a\n\nb\n" });
        let mut node = Node::of(&object, &[("MARK", ".Values.c")]).unwrap();
        node.set("/a/b", Node::Scalar(".Values.b".into())).unwrap();
        node.extend("/a", ".Values.more").unwrap();
        node.set("/l/0/y", Node::Yaml("toYaml .Values.y".into())).unwrap();
        node.only_if("/s", ".Values.s").unwrap();
        node.optional("", "o", ".Values.o").unwrap();
        let expected = "\
a:
  b: {{ .Values.b }}
  c: {{ .Values.c }}
  {{- with .Values.more }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
l:
- x: 1
  y:
    {{- toYaml .Values.y | nindent 4 }}
{{- if .Values.s }}
s: '{{ \"{{\" }} $labels.x }}'
{{- end }}
t: |
  a

  b
{{- if .Values.o }}
o:
  {{- toYaml (.Values.o) | nindent 2 }}
{{- end }}
";
        assert_eq!(node.print(0).unwrap(), expected);
    }

    #[test]
    fn a_place_that_is_not_there_is_an_error_that_names_it() {
        let object = json!({ "a": { "b": 1 }, "l": [{ "name": "x" }, { "name": "y", "value": "MARK" }] });
        let mut node = Node::of(&object, &[("MARK", "")]).unwrap();
        for (name, place) in [("x", "/l/0"), ("y", "/l/1")] {
            assert_eq!(node.named("/l", name).unwrap(), place);
        }
        assert_eq!(node.named("/l", "z").unwrap_err().to_string(), "/l has no z");
        for pointer in ["/c", "/a/c", "/a/b/c"] {
            let problem = node.set(pointer, Node::Scalar(String::new())).unwrap_err().to_string();
            assert!(problem.contains(pointer) || problem.contains("neither"), "{problem}");
        }
        let partly = Node::of(&json!({ "a": "x-MARK" }), &[("MARK", "")]).unwrap_err().to_string();
        assert!(partly.contains("x-MARK"), "{partly}");
    }
}
