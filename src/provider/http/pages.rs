//! Lists that clouds give page by page *(no client)*.

use operator_kit::Message;

use crate::provider::{Error, ErrorClass};

/// The most pages of one list.
pub(in crate::provider) const MOST_PAGES: usize = 1000;

/// Reads a list to its end. `page` reads the page at a cursor, and gives that of the next page, if there is one.
pub(in crate::provider) async fn each_page<C, E: From<Error>>(
    doing: &str,
    first: C,
    mut page: impl AsyncFnMut(C) -> Result<Option<C>, E>,
) -> Result<(), E> {
    let mut cursor = first;
    for _ in 0..MOST_PAGES {
        match page(cursor).await? {
            Some(next) => cursor = next,
            None => return Ok(()),
        }
    }
    Err(too_many_pages(doing).into())
}

/// The error that a list does not end.
pub(in crate::provider) fn too_many_pages(doing: &str) -> Error {
    let message = format!("{doing} failed: the list has more than {MOST_PAGES} pages");
    Error::new(ErrorClass::Transient, Message::public(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many pages of a list with `all` pages are read, and how that ends.
    async fn read(all: usize) -> (usize, Result<(), ErrorClass>) {
        let mut count = 0;
        let end = each_page("listing", 1, async |number: usize| {
            count += 1;
            Ok::<_, Error>((number < all).then_some(number + 1))
        });
        let end = end.await.map_err(|error| error.class);
        (count, end)
    }

    #[tokio::test]
    async fn a_list_ends_with_its_last_page_or_is_too_long() {
        assert_eq!(read(1).await, (1, Ok(())));
        assert_eq!(read(MOST_PAGES).await, (MOST_PAGES, Ok(())));
        assert_eq!(read(MOST_PAGES + 1).await, (MOST_PAGES, Err(ErrorClass::Transient)));
    }

    #[tokio::test]
    async fn a_page_that_fails_ends_the_list() {
        let failed = Error::new(ErrorClass::Unauthorized, "no");
        let end = each_page("listing", 1, async |_: usize| Err(failed.clone())).await;
        assert_eq!(end, Err(failed));
    }
}
