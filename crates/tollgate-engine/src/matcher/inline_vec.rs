//! A list that allocates only when it is long.

/// Up to `N` items inline, more on the heap.
#[derive(Clone, Debug)]
pub(crate) struct InlineVec<T, const N: usize> {
    /// `None` while the list is empty.
    inline: Option<[T; N]>,
    used: usize,
    /// All items, once there are more than `N`.
    heap: Vec<T>,
}

impl<T: Copy, const N: usize> InlineVec<T, N> {
    pub(crate) const fn new() -> Self {
        Self {
            inline: None,
            used: 0,
            heap: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        if self.used < N {
            let inline = self.inline.get_or_insert([item; N]);
            inline[self.used] = item;
            self.used += 1;
            return;
        }
        // The first item beyond `N` moves all items to the heap, so that they stay one slice.
        if self.heap.is_empty() {
            self.heap
                .extend_from_slice(self.inline.as_slice().as_flattened());
        }
        self.heap.push(item);
    }

    /// Keeps the first `length` items.
    #[inline]
    pub(crate) fn truncate(&mut self, length: usize) {
        if self.heap.is_empty() {
            self.used = self.used.min(length);
        } else if length > 0 {
            self.heap.truncate(length);
        } else {
            (self.heap, self.used) = (Vec::new(), 0);
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        match &self.inline {
            _ if !self.heap.is_empty() => &self.heap,
            Some(inline) => &inline[..self.used],
            None => &[],
        }
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match &mut self.inline {
            _ if !self.heap.is_empty() => &mut self.heap,
            Some(inline) => &mut inline[..self.used],
            None => &mut [],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_items_are_all_there_in_order() {
        for count in 0..20u32 {
            let mut few = InlineVec::<u32, 8>::new();
            (0..count).for_each(|item| few.push(item));
            assert_eq!(few.as_slice(), (0..count).collect::<Vec<_>>());
            few.as_mut_slice().reverse();
            assert_eq!(few.as_slice(), (0..count).rev().collect::<Vec<_>>());
            for length in (0..=count).rev() {
                few.truncate(length as usize);
                assert_eq!(few.as_slice().len(), length as usize);
            }
            few.push(7);
            assert_eq!(few.as_slice(), [7]);
        }
    }
}
