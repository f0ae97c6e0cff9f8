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

use super::{
    MOST_CONTAINERS,
    sizing::{ANNOTATIONS, Demand},
};

/// The annotation's key.
pub const COUNTED: &str = "peerpods.confidentialcontainers.org/counted";

/// The entry of the Pod as a whole. No container has such a name.
pub(crate) const POD: &str = "*";

/// The most digits of a size. The largest that is written has as many, and any number of so many fits into 64 bits.
pub(crate) const SIZE_DIGITS: usize = 19;

/// What was counted, and what was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted<'a> {
    /// The values that the webhook wrote into the [`ANNOTATIONS`]. Other values are the user's.
    pub written: [Option<u64>; ANNOTATIONS.len()],
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

    /// Reads the annotation. `None`: neither the webhook nor the policy wrote this. The policy reads the same form.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut entries = text.split(';');
        let mut counted = Self { written: numbers(entries.next()?, is_size)?, ..Self::default() };
        for entry in entries {
            let (name, demand) = entry.split_once('=').filter(|(name, _)| !name.is_empty())?;
            let demand = Demand(numbers(demand, is_amount)?);
            if name == POD {
                // The policy, too, takes the first one.
                counted.pod.get_or_insert(demand);
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

/// As many numbers of this form as there must be, of which any may be missing.
fn numbers<T: std::str::FromStr + Copy, const N: usize>(
    text: &str,
    is_of_form: fn(&str) -> bool,
) -> Option<[Option<T>; N]> {
    let mut numbers = [None; N];
    let mut texts = text.split('/');
    for number in &mut numbers {
        *number = match texts.next()? {
            "" => None,
            text if is_of_form(text) => Some(text.parse().ok()?),
            _ => return None,
        };
    }
    texts.next().is_none().then_some(numbers)
}

fn is_size(text: &str) -> bool {
    text.len() <= SIZE_DIGITS && !text.starts_with('0') && has_only_digits(text)
}

/// A whole number, or thousandths. A container may request `1Ki`, but that is written in another form.
fn is_amount(text: &str) -> bool {
    has_only_digits(text.strip_suffix('m').unwrap_or(text))
}

fn has_only_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
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
        let counted = Counted::parse("2//;*=4////;main-init=1////;main=500m/2///1").unwrap();
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

    #[test]
    fn numbers_that_nothing_writes_in_this_form_are_not_read() {
        for size in ["+2", "02", "2m", "18446744073709551615"] {
            assert_eq!(Counted::parse(&format!("{size}//")), None, "{size}");
        }
        for amount in ["1Ki", "0.5", "1e3", "+1", "m", "1mm"] {
            assert_eq!(Counted::parse(&format!("//;a={amount}////")), None, "{amount}");
        }
        assert_eq!(Counted::parse("//;=1////"), None, "a container without a name");
    }
}
