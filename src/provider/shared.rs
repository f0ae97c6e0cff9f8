//! What providers of one process share, such as a login.

use std::{
    any::Any,
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use ring::digest::{Context, SHA256};

use super::Error;

/// What providers for the same account or host share, as long as one of them exists. Cheap to clone.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<HashMap<Key, Weak<dyn Any + Send + Sync>>>>);

/// Identifies a shared thing. It shows nothing of the credentials that went into it.
type Key = Vec<u8>;

impl Shared {
    /// The thing that was made for these parts, or else a new one from `make`. The first part is the cloud's name.
    pub(super) fn get<T: Any + Send + Sync>(
        &self,
        parts: &[&str],
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        let key = key(parts);
        let mut all = self.0.lock();
        let found = all.get(&key).and_then(Weak::upgrade).and_then(|found| found.downcast().ok());
        if let Some(found) = found {
            return Ok(found);
        }
        let new = Arc::new(make()?);
        let any: Arc<dyn Any + Send + Sync> = new.clone();
        all.retain(|_, left| left.strong_count() > 0);
        all.insert(key, Arc::downgrade(&any));
        Ok(new)
    }
}

fn key(parts: &[&str]) -> Key {
    let mut context = Context::new(&SHA256);
    for part in parts {
        // Without the length, the end of one part could be taken for the beginning of the next one.
        context.update(&part.len().to_be_bytes());
        context.update(part.as_bytes());
    }
    context.finish().as_ref().to_vec()
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::ErrorClass;

    #[test]
    fn one_thing_is_made_for_all_who_need_it_at_the_same_time() {
        let shared = Shared::default();
        let made = |parts: &[&str], number: u32| shared.get(parts, || Ok(number)).unwrap();
        let first = made(&["a", "user", "password"], 1);
        assert_eq!(*made(&["a", "user", "password"], 2), 1);
        assert_eq!(*made(&["a", "user", "another"], 3), 3);
        assert_eq!(*made(&["a", "userp", "assword"], 4), 4);
        drop(first);
        assert_eq!(*made(&["a", "user", "password"], 5), 5, "nobody used it any more");
        assert_eq!(shared.0.lock().len(), 1, "what is gone is forgotten");
    }

    #[test]
    fn a_failed_construction_is_retried() {
        let shared = Shared::default();
        let failed = shared.get::<u32>(&["a"], || Err(Error::new(ErrorClass::Invalid, "no")));
        assert!(failed.is_err());
        assert_eq!(shared.get(&["a"], || Ok(1)).as_deref(), Ok(&1));
    }
}
