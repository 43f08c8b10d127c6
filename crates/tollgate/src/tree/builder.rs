//! The settings of a tree before it is built.

use tollgate_core::Rate;

use super::ClassTree;
use super::class::{Class, TreeError};
use super::nodes::NodeTable;
use crate::clock::{ClockChoice, DefaultClock, WithClock};
use crate::key_table::hasher::KeyHasher;
use crate::sync::Mutex;

/// Builds a [`ClassTree`]; made by [`ClassTree::builder`].
///
/// ```
/// use tollgate::{Rate, ClassTree, tree::Class, clock::Manual};
///
/// let tree = ClassTree::builder(Rate::per_second(10)).strict().clock(Manual::new()).build()?;
/// let user = tree.add_leaf("user", tree.root(), Class::new(Rate::per_second(2)))?;
/// let passed = (0..5).filter(|_| tree.allow(user)).count();
/// assert_eq!(passed, 2);
/// # Ok::<(), tollgate::tree::TreeError>(())
/// ```
pub type Builder<C = DefaultClock> = WithClock<Settings, C>;

/// The settings of a tree, except its clock.
#[derive(Debug)]
pub struct Settings {
    rate: Rate,
    strict: bool,
}

impl Builder {
    pub(super) const fn new(rate: Rate) -> Self {
        Self::from_settings(Settings {
            rate,
            strict: false,
        })
    }
}

impl<C> Builder<C> {
    /// Disables lending: a request passes only if its leaf and every class above it have the tokens,
    /// first come, first served. Classes with a ceil are rejected.
    pub fn strict(mut self) -> Self {
        self.settings.strict = true;
        self
    }
}

impl<C: ClockChoice> Builder<C> {
    /// Builds it on the chosen clock, or on the default one.
    ///
    /// # Errors
    /// If the rate can't be represented.
    pub fn build(self) -> Result<ClassTree<C::Clock>, TreeError> {
        let root = Class::new(self.settings.rate).compile("root", self.settings.strict)?;
        let nodes = NodeTable::new(&root, self.settings.strict);
        Ok(ClassTree {
            root: nodes.root(),
            nodes: Mutex::new(nodes),
            hasher: KeyHasher::random(),
            clock: self.clock.into_clock(),
        })
    }
}
