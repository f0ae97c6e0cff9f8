//! The number of VMs that a configuration requests. Pure *(no client)*.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use operator_kit::text::cut;

use crate::api::v1alpha1::MOST_VMS;

/// The number of bytes that are shown of a text that is no limit: enough to recognise it.
const SHOWN: usize = 40;

/// An unusable limit: the beginning of its text. Nodes keep what they advertise until it is corrected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.limit is \"{0}\": it must be a whole number from 0 to {MOST_VMS}, such as 10; until then the operator does not \
     change nodes"
)]
pub struct BadLimit(String);

/// Reads a `spec.limit`; `None` if there is none. The schema refuses bad limits, but objects may be older than the schema.
pub fn parse(limit: Option<&IntOrString>) -> Result<Option<u32>, BadLimit> {
    let Some(limit) = limit else { return Ok(None) };
    let text = match limit {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.trim().to_owned(),
    };
    // Rust reads +1, too.
    let are_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(vms) if are_digits && vms <= MOST_VMS => Ok(Some(vms)),
        _ => Err(BadLimit(cut(&text, SHOWN))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Result<Option<u32>, BadLimit> {
        parse(Some(&IntOrString::String(text.to_owned())))
    }

    #[test]
    fn numbers_and_texts_of_numbers_are_limits() {
        assert_eq!(parse(None), Ok(None));
        assert_eq!(parse(Some(&IntOrString::Int(10))), Ok(Some(10)));
        for (given, vms) in [("10", 10), ("0", 0), ("007", 7), (" 3 ", 3), ("1000000", MOST_VMS)] {
            assert_eq!(text(given), Ok(Some(vms)), "{given}");
        }
    }

    #[test]
    fn an_invalid_limit_is_named_and_so_are_the_bounds() {
        assert_eq!(parse(Some(&IntOrString::Int(-1))), Err(BadLimit("-1".into())));
        for given in ["-0", "-99999999999999999999", "1000001", "4294967296", "99999999999999999999"] {
            assert_eq!(text(given), Err(BadLimit(given.into())));
        }
        for given in ["", "-", "ten", "1e3", "1.5", "+1", "0x10", "--1", "١"] {
            assert_eq!(text(given), Err(BadLimit(given.into())));
        }
        let message = text("ten").unwrap_err().to_string();
        assert!(message.contains(r#""ten""#) && message.contains("from 0 to 1000000"), "{message}");
    }

    proptest! {
        #[test]
        fn any_text_has_an_answer_of_bounded_length(given in ".{0,300}") {
            if let Err(problem) = text(&given) {
                prop_assert!(problem.to_string().chars().count() < 250);
            }
        }
    }
}
