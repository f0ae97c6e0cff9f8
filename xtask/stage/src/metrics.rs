//! Reads `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};

/// One answer of `/metrics`, in Prometheus' text format.
#[derive(Clone, Debug)]
pub struct Metrics {
    text: String,
    samples: Vec<Sample>,
}

/// A metric's name, type and labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    /// The name as it is scraped.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: String,
    /// The labels' names.
    pub labels: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Reads the text format.
    pub fn parse(text: String) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines
            .map(|line| sample(line).with_context(|| format!("{line:?} is no sample of a metric")))
            .collect::<Result<_>>()?;
        Ok(Self { text, samples })
    }

    /// The sum of the samples with this name and these labels, whatever other labels they have. It is 0 without a sample, because a
    /// counter that never counted may be absent.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let matching = self.samples.iter().filter(|sample| {
            let has = |(key, value): &(&str, &str)| sample.labels.get(*key).is_some_and(|own| own == value);
            sample.name == name && labels.iter().all(has)
        });
        matching.map(|sample| sample.value).sum()
    }

    /// The values of this label in all samples whose name has this prefix.
    pub fn label_values(&self, name: &str, label: &str) -> BTreeSet<&str> {
        let samples = self.samples.iter().filter(|sample| sample.name.starts_with(name));
        samples.filter_map(|sample| sample.labels.get(label)).map(String::as_str).collect()
    }

    /// Every metric with a sample: its name (with the suffix of counters and infos, without those of histograms), its type and its labels.
    pub fn families(&self) -> Result<BTreeSet<Family>> {
        let types = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        types
            .map(|(base, kind)| {
                let name = match kind {
                    "counter" => format!("{base}_total"),
                    "info" => format!("{base}_info"),
                    _ => base.to_owned(),
                };
                let counted = if kind == "histogram" { format!("{name}_count") } else { name.clone() };
                let mut samples = self.samples.iter().filter(|sample| sample.name == counted);
                let first = samples.next().with_context(|| format!("{name} has a type and no sample"))?;
                let labels = first.labels.keys().cloned().collect();
                Ok(Family { name, kind: kind.to_owned(), labels })
            })
            .collect()
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// `name{key="value",…} value`, the labels optional.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            rest = rest.strip_prefix(',').unwrap_or(rest);
            if let Some(behind) = rest.strip_prefix('}') {
                rest = behind;
                break;
            }
            let (key, value) = rest.split_once("=\"")?;
            let (value, behind) = unquote(value)?;
            labels.insert(key.to_owned(), value);
            rest = behind;
        }
    }
    // A timestamp may follow.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The text up to the closing quote, and the rest after it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (end, '"') => return Some((value, &text[end + 1..])),
            (_, '\\') => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, other) => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_any_of_their_labels() {
        let text = "# HELP calls Calls.\n# TYPE calls counter\n\
                    calls_total{cloud=\"a\",result=\"ok\"} 3\ncalls_total{cloud=\"b\",result=\"ok\"} 4.5\nup 1 1700000000\n# EOF\n";
        let metrics = Metrics::parse(text.to_owned()).unwrap();
        assert!((metrics.sum("calls_total", &[("result", "ok")]) - 7.5).abs() < 1e-9);
        assert!((metrics.sum("calls_total", &[("cloud", "b")]) - 4.5).abs() < 1e-9);
        assert!((metrics.sum("up", &[]) - 1.0).abs() < 1e-9);
        assert!(metrics.sum("calls_total", &[("cloud", "c")]).abs() < 1e-9);
    }

    #[test]
    fn families_have_the_names_that_queries_use() {
        let text = "# TYPE a counter\na_total{x=\"1\"} 3\na_total{x=\"2\"} 3\n# TYPE b info\nb_info{v=\"1\"} 1\n\
                    # TYPE c histogram\nc_sum 1\nc_count 1\nc_bucket{le=\"+Inf\"} 1\n# EOF\n";
        let metrics = Metrics::parse(text.to_owned()).unwrap();
        let families = metrics.families().unwrap();
        let told: Vec<_> =
            families.iter().map(|it| (it.name.as_str(), it.kind.as_str(), it.labels.len())).collect();
        assert_eq!(told, [("a_total", "counter", 1), ("b_info", "info", 1), ("c", "histogram", 0)]);
        assert_eq!(metrics.label_values("a", "x"), ["1", "2"].into());
        assert!(Metrics::parse("# TYPE a gauge\n".to_owned()).unwrap().families().is_err());
    }

    #[test]
    fn label_values_may_hold_anything() {
        let sample = sample(r#"x{a="q\"}, b=\\",b="\n"} -1e3"#).unwrap();
        assert_eq!(sample.labels["a"], r#"q"}, b=\"#);
        assert_eq!(sample.labels["b"], "\n");
        assert!((sample.value + 1000.0).abs() < 1e-9);
    }

    #[test]
    fn a_malformed_sample_is_an_error() {
        for text in ["x", "x{a=\"b\" 1", "x{a=b} 1", "x one"] {
            assert!(Metrics::parse(text.to_owned()).is_err(), "{text}");
        }
    }
}
