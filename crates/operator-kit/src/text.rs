//! Texts for people, cut to a limit, texts that may be empty, and bytes as text.

use std::{error::Error, fmt::Write as _, iter::successors};

use kube::client::AuthError;

/// The beginning of a text, of at most `limit` bytes. It is cut between characters.
pub fn cut(text: &str, limit: usize) -> String {
    let end = (0..=text.len().min(limit)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    text[..end].to_owned()
}

/// The text, if it is not empty: an empty variable or field counts as one that is not set.
pub fn non_empty<T: AsRef<str>>(text: Option<T>) -> Option<T> {
    text.filter(|text| !text.as_ref().is_empty())
}

/// An error with its causes, each once: the texts of many errors end with that of their cause, and others leave it out.
///
/// Of a kubeconfig's exec plugin that failed it repeats neither the command nor the standard output: secrets may be in both.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    if let Some(problem) = of_credentials(error) {
        return problem;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let further = error.to_string();
        if !text.ends_with(&further) {
            text = format!("{text}: {further}");
        }
        cause = error.source();
    }
    text
}

/// The text for an error that credentials caused; `None` for any other error. kube's own texts quote the exec plugin's command, of
/// which the arguments and the environment may be secrets, and all that it printed, which may be a token.
fn of_credentials(error: &(dyn Error + 'static)) -> Option<String> {
    let cause =
        successors(Some(error), |&error| error.source()).find_map(|it| it.downcast_ref::<AuthError>())?;
    Some(match cause {
        AuthError::AuthExecParse(_) => "the output of the kubeconfig's exec plugin cannot be read".to_owned(),
        AuthError::AuthExecStart(why) => format!("the kubeconfig's exec plugin cannot be started: {why}"),
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            // kube leaves standard error to a plugin that may ask a person.
            let said = non_empty(Some(said.trim())).unwrap_or("it may have said why on standard error");
            format!("the kubeconfig's exec plugin failed ({}): {said}", out.status)
        }
        other => other.to_string(),
    })
}

/// How many names [`listed`] gives.
const NAMED: usize = 10;

/// The first ten of these names, separated by commas, and how many more there are.
pub fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let first: Vec<_> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    let first = first.join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Bytes, such as a digest, in lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("short", 9), "short");
        assert_eq!(cut(&format!("a{}", "é".repeat(9)), 4), "aé");
    }

    #[test]
    fn an_empty_text_is_none() {
        assert_eq!([None, Some(""), Some(" ")].map(non_empty), [None, None, Some(" ")]);
    }

    #[test]
    fn each_byte_has_two_hexadecimal_digits() {
        assert_eq!((hex(&[]), hex(&[0, 10, 255])), (String::new(), "000aff".to_owned()));
    }

    #[test]
    fn of_many_names_the_first_are_given() {
        let names: Vec<_> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(listed(&names[..0]), "");
        assert_eq!(listed(&names[..10]), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9");
        assert_eq!(listed(&names), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }

    #[test]
    fn other_errors_are_none_of_the_credentials() {
        assert_eq!(of_credentials(&kube::Error::Service("connection refused".into())), None);
    }
}
