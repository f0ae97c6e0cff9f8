//! The annotation that tells a second review of a Pod what the first one did.
//!
//! ```text
//! 2/4096/;*=4////;main=500m/2/4294967296/4294967296/;helper=////
//! │ │    │ │    └ each counted container with its demand: cpu request, cpu limit, memory request,
//! │ │    │ │      memory limit, GPUs; empty if it has none
//! │ │    │ └ the same for the Pod as a whole, if that was counted
//! └─┴────┴ the values written into the annotations: vCPUs, MiB, GPUs; empty if none was written
//! ```

use std::fmt;

use super::{mutate::MOST_CONTAINERS, sizing::Demand};

/// The annotation's key.
pub const COUNTED: &str = "peerpods.confidentialcontainers.org/counted";

/// The entry of the Pod as a whole. No container has such a name.
pub(crate) const POD: &str = "*";

/// What was counted, and what was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted<'a> {
    /// The values that the webhook wrote into the annotations for vCPUs, memory and GPUs. Other values are the user's.
    pub written: [Option<u64>; 3],
    /// What the Pod as a whole asked for, if it did.
    pub pod: Option<Demand>,
    /// Names of containers, with their demands.
    pub containers: Vec<(&'a str, Demand)>,
}

impl<'a> Counted<'a> {
    /// What the container of this name asked for, if it was counted.
    pub fn demand(&self, container: &str) -> Option<Demand> {
        self.containers.iter().find(|(name, _)| *name == container).map(|(_, demand)| *demand)
    }

    /// Reads the annotation. `None`: the webhook did not write this.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut entries = text.split(';');
        let mut counted = Self { written: numbers(entries.next()?)?, ..Self::default() };
        for entry in entries {
            let (name, demand) = entry.split_once('=')?;
            let demand = Demand(numbers(demand)?);
            if name == POD {
                counted.pod = Some(demand);
            } else if counted.containers.len() == 2 * MOST_CONTAINERS {
                return None;
            } else {
                counted.containers.push((name, demand));
            }
        }
        Some(counted)
    }
}

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_numbers(f, &self.written)?;
        let pod = self.pod.iter().map(|demand| (POD, demand));
        let containers = self.containers.iter().map(|(name, demand)| (*name, demand));
        for (name, Demand(amounts)) in pod.chain(containers) {
            write!(f, ";{name}=")?;
            write_numbers(f, amounts)?;
        }
        Ok(())
    }
}

fn write_numbers<T: fmt::Display>(f: &mut fmt::Formatter<'_>, numbers: &[Option<T>]) -> fmt::Result {
    for (place, number) in numbers.iter().enumerate() {
        if place > 0 {
            f.write_str("/")?;
        }
        if let Some(number) = number {
            number.fmt(f)?;
        }
    }
    Ok(())
}

/// As many numbers as there must be, of which any may be missing.
fn numbers<T: std::str::FromStr + Copy, const N: usize>(text: &str) -> Option<[Option<T>; N]> {
    let mut numbers = [None; N];
    let mut texts = text.split('/');
    for number in &mut numbers {
        *number = match texts.next()? {
            "" => None,
            text => Some(text.parse().ok()?),
        };
    }
    texts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displayed_marker_parses_to_the_same_marker() {
        for text in [
            "//",
            "2/4096/;*=4////;main=500m/2/4294967296/4294967296/1;helper=////",
            "9223372036854775807//1;a=1m////",
        ] {
            assert_eq!(Counted::parse(text).unwrap().to_string(), text);
        }
        let counted = Counted::parse("2//;*=4////;main=500m/2///1").unwrap();
        assert_eq!(counted.written, [Some(2), None, None]);
        assert_eq!(counted.demand("main").unwrap().0[0], Some("0.5".parse().unwrap()));
        assert_eq!(counted.demand("*"), None, "the Pod is no container");
        assert!(counted.pod.is_some());
    }

    #[test]
    fn malformed_markers_are_not_read() {
        for text in
            ["", "2", "a//", "-1//", "2/4096//", "2/4096/;main", "2/4096/;main=1/2", "//;a=x////", "//;"]
        {
            assert_eq!(Counted::parse(text), None, "{text}");
        }
    }
}
