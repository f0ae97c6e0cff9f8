//! The chart's values in the forms that users read.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use peerpod_operator::provider::Cloud;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use serde_yaml::Value as Yaml;

use super::{
    super::{
        HEADER,
        settings::{Place, caveat, comment, keys, value, wrap},
    },
    template::NOTE,
    values::{Values, WITHOUT_EFFECT},
};

/// Values with their documentation.
pub(super) struct Document {
    /// The values in the order of the type's fields.
    values: Yaml,
    schema: Value,
}

/// One value.
struct Line<'a> {
    /// Its path: `operator.image.tag`.
    path: String,
    name: &'a str,
    depth: usize,
    /// `None` if it is only the parent of other values.
    default: Option<&'a Yaml>,
    about: String,
}

impl Document {
    pub(super) fn of(values: &Values) -> Result<Self> {
        // Every version of helm knows this draft.
        let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<Values>();
        let mut schema = schema.to_value();
        join_lines(&mut schema);
        let values = serde_yaml::to_value(values)?;
        let_unset(&mut schema, &values);
        Ok(Self { values, schema })
    }

    /// `values.schema.json`.
    pub(super) fn schema(&self) -> Result<String> {
        Ok(format!("{}\n", serde_json::to_string_pretty(&self.schema)?))
    }

    /// `values.yaml`.
    pub(super) fn yaml(&self) -> Result<String> {
        let mut text = HEADER.to_owned();
        for line in self.lines()? {
            let margin = "  ".repeat(line.depth);
            if line.depth == 0 {
                text.push('\n');
            }
            for comment in wrap(&line.about).lines() {
                writeln!(text, "{margin}{comment}")?;
            }
            match line.default {
                None => writeln!(text, "{margin}{}:", line.name)?,
                Some(default) => {
                    let mut entry = serde_yaml::Mapping::new();
                    entry.insert(line.name.into(), default.clone());
                    for printed in serde_yaml::to_string(&entry)?.lines() {
                        writeln!(text, "{margin}{printed}")?;
                    }
                }
            }
        }
        Ok(text)
    }

    /// The table of the README.
    pub(super) fn table(&self) -> Result<String> {
        let mut table = String::from("| value | default | meaning |\n|---|---|---|\n");
        for line in self.lines()? {
            let default = line.default.map(serde_json::to_string).transpose()?;
            let default = default.filter(|it| it != "\"\"").map_or_else(String::new, |it| format!("`{it}`"));
            let about = line.about.replace('|', "\\|");
            writeln!(table, "| `{}` | {default} | {about} |", line.path)?;
        }
        Ok(table)
    }

    /// A template that lists, with commas between, the values that a user sets without effect.
    pub(super) fn without_effect(&self) -> Result<String> {
        let mut text = String::from(NOTE);
        text.push_str(
            "
{{- /* The values that are said without effect. */ -}}
{{- define \"peerpod-operator.withoutEffect\" -}}
{{- $vain := include \"peerpod-operator.tlsWithoutEffect\" . | fromYamlArray -}}
{{- $vain = concat $vain (include \"peerpod-operator.overruled\" . | fromYamlArray) -}}
",
        );
        for line in self.lines()? {
            if let (Some(default), true) = (line.default, line.about.starts_with(WITHOUT_EFFECT)) {
                let path = line.path.replace('.', "\" \"");
                // Null counts as not set.
                let unsaid = serde_json::to_string(&serde_json::to_string(default)?)?;
                writeln!(
                    text,
                    "{{{{- if not (has (toJson (index .Values \"{path}\")) (list {unsaid} \"null\")) }}}}{{{{ $vain = append $vain \"{}\" }}}}{{{{ end -}}}}",
                    line.path
                )?;
            }
        }
        text.push_str("{{- join \", \" $vain -}}\n{{- end }}\n");
        Ok(text)
    }

    fn lines(&self) -> Result<Vec<Line<'_>>> {
        let mut lines = Vec::new();
        walk(&self.values, &self.schema, "", 0, &mut lines)?;
        Ok(lines)
    }
}

fn walk<'a>(
    values: &'a Yaml,
    schema: &Value,
    parent: &str,
    depth: usize,
    lines: &mut Vec<Line<'a>>,
) -> Result<()> {
    for (name, value) in values.as_mapping().into_iter().flatten() {
        let name = name.as_str().context("a name is text")?;
        let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
        let schema = &schema["properties"][name];
        let about = schema["description"].as_str().with_context(|| format!("{path} is not described"))?;
        // The keys of a map that users fill are not the chart's, so the whole map is one value.
        let is_parent = value.as_mapping().is_some_and(|fields| !fields.is_empty())
            && schema["properties"].is_object()
            && schema["additionalProperties"] == false;
        let default = (!is_parent).then_some(value);
        lines.push(Line { path: path.clone(), name, depth, default, about: about.to_owned() });
        if is_parent {
            walk(value, schema, &path, depth + 1, lines)?;
        }
    }
    Ok(())
}

/// Joins the lines of descriptions, because comments are wrapped for the editor.
fn join_lines(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            }
            fields.values_mut().for_each(join_lines);
        }
        Value::Array(items) => items.iter_mut().for_each(join_lines),
        _ => {}
    }
}

/// Helm drops a value that is null. Allow null only for values that may be empty.
fn let_unset(schema: &mut Value, values: &Yaml) {
    let is_empty = |value: &Yaml| match value {
        Yaml::String(text) => text.is_empty(),
        Yaml::Sequence(items) => items.is_empty(),
        Yaml::Mapping(fields) => fields.is_empty(),
        _ => false,
    };
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name.as_str().is_none_or(|name| !values.get(name).is_some_and(is_empty)));
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, schema) in properties.into_iter().flatten() {
        if let Some(values) = values.get(name) {
            let_unset(schema, values);
        }
    }
}

/// A values file with every setting of a provider.
pub(super) fn provider_values(provider: &Cloud) -> String {
    let mut text = wrap(&format!(
        "The settings of the provider {provider}. Copy this file and use the copy as your values file. An \
         empty value means the default.{}",
        caveat(provider)
    ));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "provider: {provider}");
    for (name, place) in [("providerConfigs", Place::ConfigMap), ("providerSecrets", Place::Secret)] {
        let mut keys = keys(provider, place).peekable();
        if keys.peek().is_none() {
            continue;
        }
        if place == Place::Secret {
            text.push_str(
                "\n# helm stores these values with the release. A Secret of your own is safer: secrets.mode=reference.",
            );
        }
        let _ = write!(text, "\n{name}:\n  {provider}:\n");
        for key in keys {
            for line in comment(key).lines() {
                let _ = writeln!(text, "    {line}");
            }
            let _ = writeln!(text, "    {}: {}", key.name, Value::from(value(key)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use peerpod_operator::install::Component;

    use super::*;

    #[test]
    fn the_reserved_labels_are_documented() {
        let document = Document::of(&Values::new().unwrap()).unwrap();
        let lines = document.lines().unwrap();
        let labels = lines.iter().find(|line| line.path == "commonLabels").unwrap();
        for own in Component::Operator.labels().keys() {
            assert!(labels.about.contains(&format!("`{own}`")), "{own}: {}", labels.about);
        }
    }
}
