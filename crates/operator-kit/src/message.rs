//! Texts that tenants and administrators read differently *(no client)*.

/// A text in two versions: a status and its events show one, the log shows the other.
///
/// Tenants read the status of an object, and administrators alone read the operator's log. So the public version names no
/// host, user, socket, folder or object of another namespace. There is no `Display`: each use names the version it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    public: String,
    full: String,
}

impl Message {
    /// `public` for a status, `full` for the log.
    pub fn new(public: impl Into<String>, full: impl Into<String>) -> Self {
        Self { public: public.into(), full: full.into() }
    }

    /// A text that tenants may read as a whole.
    pub fn public(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { public: text.clone(), full: text }
    }

    /// What a status and an event show.
    pub fn for_status(&self) -> &str {
        &self.public
    }

    /// What the log shows.
    pub fn for_log(&self) -> &str {
        &self.full
    }

    /// The same change made to both versions.
    #[must_use]
    pub fn map(&self, change: impl Fn(&str) -> String) -> Self {
        Self { public: change(&self.public), full: change(&self.full) }
    }
}

/// A constant text contains nothing private. For a text that is composed, the author must decide.
impl From<&'static str> for Message {
    fn from(text: &'static str) -> Self {
        Self::public(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_own_reader_and_a_change_applies_to_both() {
        let message = Message::new("the store cannot be reached", "the store at root@host cannot be reached");
        let longer = message.map(|text| format!("{text}; try later"));
        assert_eq!(longer.for_status(), "the store cannot be reached; try later");
        assert_eq!(longer.for_log(), "the store at root@host cannot be reached; try later");
        assert_eq!(Message::from("no"), Message::public("no"));
    }
}
