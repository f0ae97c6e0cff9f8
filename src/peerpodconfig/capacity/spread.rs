//! Distributes a limited number of VMs over nodes. Pure *(no client)*.

/// A node that takes part in a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCapacity<'a> {
    /// Its name, which breaks ties.
    pub name: &'a str,
    /// How many VMs it advertises now; 0 if it advertises none.
    pub current: u32,
    /// How many peer pods run there.
    pub in_use: u32,
}

/// A distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The share of each node, in the order of the nodes.
    pub shares: Vec<u32>,
    /// How many peer pods run over the limit. The sum of the shares exceeds the limit by as many.
    pub pods_over_limit: u64,
}

impl Spread {
    /// Whether no share exceeds another one by 2 or more. Only running peer pods make shares uneven.
    pub fn is_even(&self) -> bool {
        let (least, most) = (self.shares.iter().min(), self.shares.iter().max());
        most.zip(least).is_none_or(|(most, least)| most - least < 2)
    }
}

/// Distributes `limit` VMs over these nodes.
///
/// - The shares sum to `limit`, unless more peer pods run than that.
/// - No share is below the number of peer pods that run on its node: a kubelet that restarts refuses running Pods for which there
///   is no room.
/// - The shares [are even](Spread::is_even), with this exception: a share may exceed another one by 2 or more if as many peer pods as
///   the larger share run on its node.
/// - Of all such distributions it moves the fewest VMs from what is advertised now, and of those it changes the fewest nodes.
///   Names break the remaining ties; the order of `nodes` does not matter.
///
/// It takes O(n log n) for n nodes.
pub fn spread(limit: u32, nodes: &[NodeCapacity<'_>]) -> Spread {
    let needed = total(nodes, 0);
    if nodes.is_empty() || needed > u64::from(limit) {
        let shares = nodes.iter().map(|node| node.in_use).collect();
        return Spread { shares, pods_over_limit: needed.saturating_sub(limit.into()) };
    }
    let level = level(limit, nodes);
    let mut shares: Vec<_> = nodes.iter().map(|node| node.in_use.max(level)).collect();
    // Fewer VMs are left than there are nodes that can have one more, or the level would be higher.
    let left = u64::from(limit) - total(nodes, level);
    let mut takers: Vec<_> = (0..nodes.len()).filter(|&index| nodes[index].in_use <= level).collect();
    takers.sort_unstable_by_key(|&index| (cost_of_one_more(level, nodes[index].current), nodes[index].name));
    for (_, index) in (0..left).zip(takers) {
        shares[index] += 1;
    }
    Spread { shares, pods_over_limit: 0 }
}

/// The sum of the shares if every node has `level`, or as many as run there.
fn total(nodes: &[NodeCapacity<'_>], level: u32) -> u64 {
    nodes.iter().map(|node| u64::from(node.in_use.max(level))).sum()
}

/// The most that every node can have. There is a node, and `limit` is enough for level 0.
fn level(limit: u32, nodes: &[NodeCapacity<'_>]) -> u32 {
    let (mut enough, mut most) = (0, limit);
    while enough < most {
        let middle = enough + (most - enough).div_ceil(2);
        if total(nodes, middle) <= u64::from(limit) {
            enough = middle;
        } else {
            most = middle - 1;
        }
    }
    enough
}

/// The relative cost of giving a node one more than `level`. A node that has more now loses one less, and a node that has less
/// now gains one more. In either case a node that could stay as it is comes first.
fn cost_of_one_more(level: u32, current: u32) -> u8 {
    match current.checked_sub(level) {
        Some(1) => 0,
        Some(2..) => 1,
        None => 2,
        Some(0) => 3,
    }
}

#[cfg(test)]
mod tests;
