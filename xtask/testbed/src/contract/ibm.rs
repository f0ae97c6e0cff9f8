//! What the contract needs of both of IBM's clouds.

use peerpod_operator::provider::contract::{Behavior, Cannot, Example, Left};
use peers::{
    HttpRelay,
    ibm::{Behavior as Behaves, Ibm},
};

use super::{failed, hinder};

/// The differences between them.
pub(super) struct Api {
    /// The start of its paths.
    pub(super) path: &'static str,
    /// Its answer to too many requests.
    pub(super) too_many: &'static str,
    /// Why nothing remains of a VM.
    pub(super) no_remains: &'static str,
    /// Makes lists fail in the middle.
    pub(super) cut_lists_off: fn(&HttpRelay),
}

/// What is left of an example.
pub(super) async fn left(peer: &Ibm, example: &Example) -> Result<Left, Cannot> {
    let left = peer.left(&example.id).await.map_err(failed)?;
    Ok(Left { vm: left.vm, belongings: usize::try_from(left.boot)?, user_data: left.data > 0 })
}

/// Makes the cloud behave so to an example from now on.
pub(super) async fn behave(
    peer: &Ibm,
    api: &Api,
    behavior: Behavior,
    example: &Example,
) -> Result<(), Cannot> {
    let relay = peer.relay();
    let behaves = match behavior {
        Behavior::Well => {
            relay.forget_rules();
            Behaves::Well
        }
        Behavior::Unauthorized => Behaves::Unauthorized,
        Behavior::DeletesLater => Behaves::DeletesLater,
        Behavior::NotYetShown => Behaves::Hidden,
        Behavior::HoldsBelongings => return Err(Cannot::Here(api.no_remains)),
        Behavior::Throttled | Behavior::Hangs => {
            hinder(relay, behavior, api.path, api.too_many);
            return Ok(());
        }
        Behavior::CutsListsOff => {
            (api.cut_lists_off)(relay);
            return Ok(());
        }
    };
    peer.behave(&example.id, behaves).await.map_err(failed)
}
