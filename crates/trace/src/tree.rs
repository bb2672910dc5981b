//! `RangeTree`: I/Os in flight, indexed by their sectors. It finds an I/O that covers a sector, and
//! the I/Os that lie inside a range.
//!
//! This is a textbook red-black tree by first sector, stored in an array. Its balancing must stay
//! as in the textbook: if I/Os overlap, the tree's shape decides which one a search finds, and
//! btt's tree has this shape. Source: Cormen et al., Introduction to Algorithms, 3rd edition,
//! chapter 13.

use std::cmp::Ordering;

/// Index of a missing node. Its colour is black.
const NIL: u32 = u32::MAX;

pub(super) type EntryIndex = u32;

#[derive(Debug)]
struct TreeNode<T> {
    start: u64,
    end: u64,
    parent: u32,
    children: [u32; 2],
    red: bool,
    /// Index of the next older and of the next younger entry.
    ages: [u32; 2],
    value: T,
}

/// Tree of I/Os by first sector. No two entries have the same first sector. Entries are also linked
/// by age, so that a full tree can drop its oldest.
#[derive(Debug)]
pub(super) struct RangeTree<T> {
    nodes: Vec<TreeNode<T>>,
    free: Vec<u32>,
    root: u32,
    ends: [u32; 2],
}

const LEFT: usize = 0;
const RIGHT: usize = 1;
const OLDER: usize = 0;
const YOUNGER: usize = 1;

impl<T> Default for RangeTree<T> {
    fn default() -> Self {
        RangeTree { nodes: Vec::new(), free: Vec::new(), root: NIL, ends: [NIL; 2] }
    }
}

impl<T> RangeTree<T> {
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub(super) fn value(&mut self, place: EntryIndex) -> &mut T {
        &mut self.at_mut(place).value
    }

    pub(super) fn range(&self, place: EntryIndex) -> (u64, u64) {
        let node = self.at(place);
        (node.start, node.end)
    }

    pub(super) fn find(&self, sector: u64) -> Option<EntryIndex> {
        let mut at = self.root;
        while at != NIL {
            let node = self.at(at);
            at = match () {
                () if sector < node.start => node.children[LEFT],
                () if sector >= node.end => node.children[RIGHT],
                () => return Some(at),
            };
        }
        None
    }

    /// Collects the entries inside a range, in the order of the search: parents before children.
    pub(super) fn inside(&self, (start, end): (u64, u64), found: &mut Vec<EntryIndex>) {
        found.clear();
        let mut open = vec![self.root];
        while let Some(at) = open.pop() {
            if at == NIL {
                continue;
            }
            let node = self.at(at);
            if start <= node.start && node.end <= end {
                found.push(at);
            }
            if node.end < end {
                open.push(node.children[RIGHT]);
            }
            if start < node.start {
                open.push(node.children[LEFT]);
            }
        }
    }

    /// Adds an entry. Returns true if the entry replaced one with the same first sector. The new
    /// entry then has the age of the old one.
    pub(super) fn insert(&mut self, (start, end): (u64, u64), value: T) -> bool {
        let (mut parent, mut at, mut side) = (NIL, self.root, LEFT);
        while at != NIL {
            parent = at;
            side = match start.cmp(&self.at(at).start) {
                Ordering::Less => LEFT,
                Ordering::Greater => RIGHT,
                Ordering::Equal => {
                    let node = self.at_mut(at);
                    (node.end, node.value) = (end, value);
                    return true;
                }
            };
            at = self.at(at).children[side];
        }
        let older = self.ends[YOUNGER];
        let node = TreeNode {
            start,
            end,
            parent,
            children: [NIL; 2],
            red: true,
            ages: [older, NIL],
            value,
        };
        let new = self.place_for(node);
        match parent {
            NIL => self.root = new,
            parent => self.at_mut(parent).children[side] = new,
        }
        match older {
            NIL => self.ends[OLDER] = new,
            older => self.at_mut(older).ages[YOUNGER] = new,
        }
        self.ends[YOUNGER] = new;
        self.balance_after_insert(new);
        false
    }

    pub(super) fn remove_oldest(&mut self) {
        if self.ends[OLDER] != NIL {
            self.remove(self.ends[OLDER]);
        }
    }

    pub(super) fn remove(&mut self, place: EntryIndex) {
        self.forget_age(place);
        let [left, right] = self.at(place).children;
        let was_red;
        let (child, parent);
        if left != NIL && right != NIL {
            let mut next = right;
            while self.at(next).children[LEFT] != NIL {
                next = self.at(next).children[LEFT];
            }
            was_red = self.at(next).red;
            child = self.at(next).children[RIGHT];
            if next == right {
                parent = next;
            } else {
                parent = self.at(next).parent;
                self.replace(next, child);
                self.at_mut(next).children[RIGHT] = right;
                self.at_mut(right).parent = next;
            }
            self.replace(place, next);
            self.at_mut(next).children[LEFT] = left;
            self.at_mut(left).parent = next;
            self.at_mut(next).red = self.at(place).red;
        } else {
            was_red = self.at(place).red;
            child = if left == NIL { right } else { left };
            parent = self.at(place).parent;
            self.replace(place, child);
        }
        if !was_red {
            self.balance_after_remove(child, parent);
        }
        self.free.push(place);
    }

    fn at(&self, place: u32) -> &TreeNode<T> {
        &self.nodes[place as usize]
    }

    fn at_mut(&mut self, place: u32) -> &mut TreeNode<T> {
        &mut self.nodes[place as usize]
    }

    fn is_red(&self, place: u32) -> bool {
        place != NIL && self.at(place).red
    }

    fn place_for(&mut self, node: TreeNode<T>) -> u32 {
        if let Some(place) = self.free.pop() {
            *self.at_mut(place) = node;
            return place;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    fn forget_age(&mut self, place: u32) {
        let ages = self.at(place).ages;
        for (side, other) in [(OLDER, YOUNGER), (YOUNGER, OLDER)] {
            match ages[side] {
                NIL => self.ends[side] = ages[other],
                neighbour => self.at_mut(neighbour).ages[other] = ages[other],
            }
        }
    }

    fn side_of(&self, place: u32, parent: u32) -> usize {
        usize::from(self.at(parent).children[RIGHT] == place)
    }

    fn replace(&mut self, old: u32, new: u32) {
        let parent = self.at(old).parent;
        match parent {
            NIL => self.root = new,
            parent => {
                let side = self.side_of(old, parent);
                self.at_mut(parent).children[side] = new;
            }
        }
        if new != NIL {
            self.at_mut(new).parent = parent;
        }
    }

    /// Rotates the node `place` down to `side`. The node's child on the opposite side moves up into
    /// its position.
    fn rotate(&mut self, place: u32, side: usize) {
        let up = self.at(place).children[1 - side];
        let between = self.at(up).children[side];
        self.at_mut(place).children[1 - side] = between;
        if between != NIL {
            self.at_mut(between).parent = place;
        }
        self.replace(place, up);
        self.at_mut(up).children[side] = place;
        self.at_mut(place).parent = up;
    }

    fn balance_after_insert(&mut self, mut at: u32) {
        while self.is_red(self.at(at).parent) {
            let mut parent = self.at(at).parent;
            let above = self.at(parent).parent;
            let side = self.side_of(parent, above);
            let uncle = self.at(above).children[1 - side];
            if self.is_red(uncle) {
                self.at_mut(uncle).red = false;
                self.at_mut(parent).red = false;
                self.at_mut(above).red = true;
                at = above;
                continue;
            }
            if self.side_of(at, parent) != side {
                self.rotate(parent, side);
                std::mem::swap(&mut parent, &mut at);
            }
            self.at_mut(parent).red = false;
            self.at_mut(above).red = true;
            self.rotate(above, 1 - side);
        }
        let root = self.root;
        self.at_mut(root).red = false;
    }

    /// Restores the balance after a removal. `at` may be `NIL`, so its parent is passed in, too.
    fn balance_after_remove(&mut self, mut at: u32, mut parent: u32) {
        while at != self.root && !self.is_red(at) {
            let side = usize::from(self.at(parent).children[LEFT] != at);
            let mut sibling = self.at(parent).children[1 - side];
            if self.is_red(sibling) {
                self.at_mut(sibling).red = false;
                self.at_mut(parent).red = true;
                self.rotate(parent, side);
                sibling = self.at(parent).children[1 - side];
            }
            let [near, far] = [side, 1 - side].map(|side| self.at(sibling).children[side]);
            if !self.is_red(near) && !self.is_red(far) {
                self.at_mut(sibling).red = true;
                at = parent;
                parent = self.at(at).parent;
                continue;
            }
            if !self.is_red(far) {
                self.at_mut(near).red = false;
                self.at_mut(sibling).red = true;
                self.rotate(sibling, 1 - side);
                sibling = self.at(parent).children[1 - side];
            }
            self.at_mut(sibling).red = self.at(parent).red;
            self.at_mut(parent).red = false;
            let far = self.at(sibling).children[1 - side];
            self.at_mut(far).red = false;
            self.rotate(parent, side);
            at = self.root;
        }
        if at != NIL {
            self.at_mut(at).red = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Black nodes on every way down; fails if the tree is none of its kind.
    fn blacks(tree: &RangeTree<u64>, at: u32, parent: u32) -> u32 {
        if at == NIL {
            return 1;
        }
        let node = tree.at(at);
        assert_eq!(node.parent, parent);
        assert!(!(node.red && tree.is_red(parent)), "a red node below a red one");
        let [left, right] = node.children.map(|child| blacks(tree, child, at));
        assert_eq!(left, right, "ways down have as many black nodes");
        left + u32::from(!node.red)
    }

    fn in_order(tree: &RangeTree<u64>, at: u32, out: &mut Vec<u64>) {
        if at != NIL {
            in_order(tree, tree.at(at).children[LEFT], out);
            out.push(tree.at(at).start);
            in_order(tree, tree.at(at).children[RIGHT], out);
        }
    }

    proptest! {
        #[test]
        fn it_stays_a_red_black_tree_and_finds_what_a_list_finds(
            steps in prop::collection::vec((any::<bool>(), 0_u64..64), 1..200)
        ) {
            let mut tree = RangeTree::default();
            let mut list: Vec<u64> = Vec::new();
            for (put, number) in steps {
                let start = number * 8;
                if put && !list.contains(&start) {
                    prop_assert!(!tree.insert((start, start + 9), 0));
                    prop_assert!(tree.insert((start, start + 8), start), "it replaces that");
                    list.push(start);
                } else if let Some(place) = tree.find(start + 3) {
                    prop_assert_eq!(*tree.value(place), start);
                    tree.remove(place);
                    list.retain(|other| *other != start);
                } else {
                    prop_assert!(!list.contains(&start));
                    tree.remove_oldest();
                    list.drain(..list.len().min(1));
                }
                blacks(&tree, tree.root, NIL);
                prop_assert!(!tree.is_red(tree.root));
                prop_assert_eq!(tree.len(), list.len());
                let mut found = Vec::new();
                tree.inside((64, 256), &mut found);
                let between = list.iter().filter(|start| (64..=248).contains(*start)).count();
                prop_assert_eq!(found.len(), between);
            }
            let (mut keys, mut sorted) = (Vec::new(), list);
            in_order(&tree, tree.root, &mut keys);
            sorted.sort_unstable();
            prop_assert_eq!(keys, sorted);
        }
    }
}
