use proptest::prelude::*;

use super::*;

fn shares(limit: u32, nodes: &[(u32, u32)]) -> Vec<u32> {
    spread(limit, &named(nodes, &names(nodes.len()))).shares
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("node-{number:03}")).collect()
}

/// Places from what each advertises now and what runs there.
fn named<'a>(nodes: &[(u32, u32)], names: &'a [String]) -> Vec<NodeCapacity<'a>> {
    nodes.iter().zip(names).map(|(&(current, in_use), name)| NodeCapacity { name, current, in_use }).collect()
}

/// Whether these shares keep all promises except that of the fewest moves.
fn is_fair(limit: u32, nodes: &[(u32, u32)], shares: &[u32]) -> bool {
    let at_least = nodes.iter().zip(shares).all(|((_, in_use), share)| share >= in_use);
    let even = nodes.iter().zip(shares).all(|((_, in_use), share)| {
        share == in_use || shares.iter().all(|other| *share <= other.saturating_add(1))
    });
    at_least && even && sum(shares) == u64::from(limit)
}

fn sum(shares: &[u32]) -> u64 {
    shares.iter().map(|share| u64::from(*share)).sum()
}

/// How many VMs move, and how many nodes change.
fn cost(nodes: &[(u32, u32)], shares: &[u32]) -> (u64, usize) {
    let moves = nodes.iter().zip(shares).map(|((current, _), share)| current.abs_diff(*share));
    let changes = moves.clone().filter(|&moved| moved > 0).count();
    (moves.map(u64::from).sum(), changes)
}

/// Every way to give each of `count` nodes from 0 to `limit` VMs.
fn all(limit: u32, count: usize) -> Vec<Vec<u32>> {
    (0..count).fold(vec![Vec::new()], |before, _| {
        let longer = |start: Vec<u32>| (0..=limit).map(move |share| [start.as_slice(), &[share]].concat());
        before.into_iter().flat_map(longer).collect()
    })
}

/// Nodes with what they advertise and what runs there, which is often at the limit.
fn capacities(most: u32, nodes: usize) -> impl Strategy<Value = Vec<(u32, u32)>> {
    let in_use = prop_oneof![3 => Just(0), 1 => 0..=most];
    prop::collection::vec((0..=most, in_use), 0..=nodes)
}

#[test]
fn ten_over_three_nodes_is_four_three_three() {
    assert_eq!(shares(10, &[(0, 0); 3]), [4, 3, 3]);
    assert_eq!(shares(2, &[(0, 0); 4]), [1, 1, 0, 0]);
    assert_eq!(shares(0, &[(5, 0); 2]), [0, 0]);
    assert_eq!(spread(7, &[]), Spread { shares: vec![], pods_over_limit: 0 });
}

#[test]
fn advertised_capacity_moves_as_little_as_possible() {
    assert_eq!(shares(10, &[(3, 0), (3, 0), (4, 0)]), [3, 3, 4]);
    // A node joins. Only the node that must change in any case gives to the new one; the others stay as they are.
    assert_eq!(shares(10, &[(3, 0), (3, 0), (4, 0), (0, 0)]), [3, 3, 2, 2]);
    // Both must change in any case: the node that has enough already keeps more.
    assert_eq!(shares(3, &[(1, 0), (9, 0)]), [1, 2]);
}

#[test]
fn running_peer_pods_keep_their_room() {
    assert_eq!(shares(10, &[(10, 8), (0, 0), (0, 0)]), [8, 1, 1]);
    assert_eq!(
        spread(4, &named(&[(6, 5), (1, 1)], &names(2))),
        Spread { shares: vec![5, 1], pods_over_limit: 2 }
    );
}

#[test]
fn five_thousand_nodes_and_the_largest_numbers_are_no_matter() {
    let many = vec![(0, 0); 5000];
    let given = shares(crate::api::v1alpha1::MOST_VMS, &many);
    assert_eq!((given.iter().min(), given.iter().max()), (Some(&200), Some(&200)));
    assert_eq!(shares(u32::MAX, &[(u32::MAX, 0)]), [u32::MAX]);
    assert_eq!(spread(0, &named(&[(0, u32::MAX); 3], &names(3))).pods_over_limit, 3 * u64::from(u32::MAX));
}

#[test]
fn only_running_peer_pods_make_shares_uneven() {
    let is_even = |limit, nodes: &[(u32, u32)]| spread(limit, &named(nodes, &names(nodes.len()))).is_even();
    assert!(is_even(7, &[]) && is_even(10, &[(0, 0); 3]) && is_even(10, &[(10, 4), (0, 0), (0, 0)]));
    assert!(!is_even(10, &[(10, 5), (0, 0), (0, 0)]), "5, 3, 2");
}

proptest! {
    #[test]
    fn shares_are_fair_and_sum_to_the_limit(limit in 0_u32..200, nodes in capacities(30, 20)) {
        let names = names(nodes.len());
        let spread = spread(limit, &named(&nodes, &names));
        let in_use: Vec<_> = nodes.iter().map(|(_, in_use)| *in_use).collect();
        prop_assert_eq!(spread.pods_over_limit, sum(&in_use).saturating_sub(limit.into()));
        if spread.pods_over_limit > 0 {
            prop_assert_eq!(spread.shares, in_use);
        } else if !nodes.is_empty() {
            prop_assert!(is_fair(limit, &nodes, &spread.shares), "{:?}", spread.shares);
        }
    }

    #[test]
    fn no_fair_distribution_moves_fewer_or_changes_fewer_nodes(limit in 0_u32..10, nodes in capacities(3, 4)) {
        let given = shares(limit, &nodes);
        let fair = all(limit, nodes.len()).into_iter().filter(|shares| is_fair(limit, &nodes, shares));
        if let Some(least) = fair.map(|shares| cost(&nodes, &shares)).min() {
            prop_assert_eq!(cost(&nodes, &given), least, "{:?}", given);
        }
    }

    #[test]
    fn the_order_of_the_nodes_decides_nothing(
        limit in 0_u32..100,
        (nodes, order) in capacities(9, 8).prop_flat_map(|nodes| {
            let order = Just((0..nodes.len()).collect::<Vec<_>>()).prop_shuffle();
            (Just(nodes), order)
        }),
    ) {
        let names = names(nodes.len());
        let in_order = named(&nodes, &names);
        let shuffled: Vec<_> = order.iter().map(|&index| in_order[index]).collect();
        let expected = spread(limit, &in_order).shares;
        let found = spread(limit, &shuffled).shares;
        for (position, &index) in order.iter().enumerate() {
            prop_assert_eq!(found[position], expected[index]);
        }
    }

    #[test]
    fn a_second_distribution_changes_nothing(limit in 0_u32..100, nodes in capacities(9, 8)) {
        let first = shares(limit, &nodes);
        let after: Vec<_> = first.iter().zip(&nodes).map(|(share, (_, in_use))| (*share, *in_use)).collect();
        prop_assert_eq!(shares(limit, &after), first);
    }
}
