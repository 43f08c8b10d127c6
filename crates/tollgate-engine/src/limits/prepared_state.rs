//! What a backend has prepared for a limit, stored in the limit: read without a lookup, and dropped with it.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::limit::Limit;

/// A place that a backend has in every limit, for a value that it prepared. The backend fills it when a policy is put
/// in force ([`supports`](crate::backend::Backend::supports)) or when a check first needs it, and reads it with each
/// check.
///
/// A limit keeps one value for each backend that used it, so two backends never see each other's.
///
/// ```
/// use std::convert::Infallible;
/// use tollgate_engine::backend::{LimitKind, Prepared, StandaloneLimit};
///
/// let jobs = StandaloneLimit::new("jobs", LimitKind::Concurrency(8))?;
/// let (mine, theirs) = (Prepared::<String>::new(), Prepared::<String>::new());
/// let made = mine.get_or_make(jobs.limit(), || Ok::<_, Infallible>("as I read it".to_owned()));
/// assert_eq!(made.map(String::as_str), Ok("as I read it"));
/// assert!(mine.get(jobs.limit()).is_some());
/// assert!(theirs.get(jobs.limit()).is_none());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("Prepared {{ .. }}")]
pub struct Prepared<T> {
    /// Unique in this process.
    owner: u64,
    of: PhantomData<fn() -> T>,
}

impl<T: Send + Sync + 'static> Prepared<T> {
    /// A place in every limit, empty at first.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            owner: NEXT.fetch_add(1, Ordering::Relaxed),
            of: PhantomData,
        }
    }

    /// The value prepared for this limit, if there is one.
    #[inline]
    pub fn get<'a>(&self, limit: &'a Limit) -> Option<&'a T> {
        let mut list = limit.prepared();
        while let Some(entry) = list.0.get() {
            if entry.owner == self.owner {
                return entry.value.downcast_ref();
            }
            list = &entry.rest;
        }
        None
    }

    /// The value prepared for this limit, made now if there is none. Two threads may both make one; the first to
    /// store it wins.
    ///
    /// # Errors
    /// The error of `make`. Nothing is stored then.
    pub fn get_or_make<'a, E>(
        &self,
        limit: &'a Limit,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'a T, E> {
        if let Some(value) = self.get(limit) {
            return Ok(value);
        }
        let mut made = Some(make()?);
        let mut list = limit.prepared();
        loop {
            let entry = list.0.get_or_init(|| {
                Box::new(Entry {
                    owner: self.owner,
                    rest: PreparedList::default(),
                    value: made.take().expect("it is made once, and put in one place"),
                })
            });
            let own = (entry.owner == self.owner).then_some(&entry.value);
            if let Some(value) = own.and_then(|value| value.downcast_ref()) {
                return Ok(value);
            }
            list = &entry.rest;
        }
    }
}

impl<T: Send + Sync + 'static> Default for Prepared<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The values that backends have prepared for one limit, in a linked list in the order of their first use: there are
/// one or two.
#[derive(Default, derive_more::Debug)]
#[debug("PreparedList")]
pub(crate) struct PreparedList(OnceLock<Box<Entry<dyn Any + Send + Sync>>>);

struct Entry<T: ?Sized> {
    owner: u64,
    rest: PreparedList,
    value: T,
}

/// A copy starts without prepared values, because copies are made to be changed.
impl Clone for PreparedList {
    fn clone(&self) -> Self {
        Self::default()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::thread;

    use super::*;
    use crate::limits::{LimitKind, StandaloneLimit};

    fn made(number: usize) -> Result<usize, Infallible> {
        Ok(number)
    }

    #[test]
    fn each_backend_keeps_its_own_and_makes_it_once() {
        let limit = StandaloneLimit::new("jobs", LimitKind::Concurrency(8)).unwrap();
        let places: Vec<_> = (0..3).map(|_| Prepared::<usize>::new()).collect();
        for (number, place) in places.iter().enumerate() {
            assert_eq!(
                place.get_or_make(limit.limit(), || made(number)),
                Ok(&number)
            );
        }
        for (number, place) in places.iter().enumerate() {
            let again = place.get_or_make(limit.limit(), || -> Result<_, Infallible> {
                unreachable!("it is kept")
            });
            assert_eq!(again, Ok(&number));
        }
    }

    #[test]
    fn nothing_is_kept_of_an_error_or_by_a_copy() {
        let limit = StandaloneLimit::new("jobs", LimitKind::Concurrency(8)).unwrap();
        let place = Prepared::<usize>::new();
        assert_eq!(place.get_or_make(limit.limit(), || Err("no")), Err("no"));
        assert_eq!(place.get(limit.limit()), None);
        assert_eq!(place.get_or_make(limit.limit(), || made(1)), Ok(&1));
        assert_eq!(place.get(&limit.limit().clone()), None);
    }

    #[test]
    fn backends_that_ask_at_once_each_find_their_own() {
        let limit = StandaloneLimit::new("jobs", LimitKind::Concurrency(8)).unwrap();
        thread::scope(|scope| {
            for number in 0..8 {
                let limit = limit.limit();
                scope.spawn(move || {
                    let place = Prepared::<usize>::new();
                    assert_eq!(place.get_or_make(limit, || made(number)), Ok(&number));
                    assert_eq!(place.get(limit), Some(&number));
                });
            }
        });
    }
}
