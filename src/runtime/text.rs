//! Texts for people, within the room that there is for them.

/// The beginning of a text, of at most `limit` bytes.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    let end = (0..=text.len().min(limit)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("short", 9), "short");
        assert_eq!(cut(&format!("a{}", "é".repeat(9)), 4), "aé");
    }
}
