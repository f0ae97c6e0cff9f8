//! The limit of lists that clouds give page by page *(no client)*.

use operator_kit::Message;

use crate::provider::{Error, ErrorClass};

/// The most pages of one list.
pub(in crate::provider) const MOST_PAGES: usize = 1000;

/// The error that a list does not end.
pub(in crate::provider) fn too_many_pages(doing: &str) -> Error {
    let message = format!("{doing} failed: the list has more than {MOST_PAGES} pages");
    Error::new(ErrorClass::Transient, Message::public(message))
}
