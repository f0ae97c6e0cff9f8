//! The volumes that belong to one domain.

use std::collections::HashMap;

use futures::future::join_all;
use libvirt_client::{ErrorCode, Volume};
use operator_kit::Message;
use parking_lot::Mutex;

use super::{Libvirt, definition};
use crate::provider::{Bears, Error, ErrorClass, InstanceId, Stage, Vm};

/// What is at the path of a volume.
pub(super) enum Found {
    /// This volume.
    There(Volume),
    /// Nothing, as its pool says.
    Absent,
    /// Nothing that is known: its pool shows no volume at all. The text says what was looked for.
    EmptyPool(Message),
}

/// The most domains with leftover volumes that are remembered; further ones are not. A domain is among them only while it is deleted, or
/// after an attempt that failed.
const MOST_REMAINS: usize = 1_000;

/// Domains whose deletion has begun and whose volumes may be left, for when the domains are gone. Lost with the process.
#[derive(Default)]
pub(super) struct Remains(Mutex<HashMap<InstanceId, Vm>>);

impl Remains {
    /// What is known to be left of the domain.
    pub(super) fn of(&self, id: &InstanceId) -> Option<Vm> {
        self.0.lock().get(id).cloned()
    }

    /// Notes whether something is left of the domain.
    pub(super) fn note(&self, vm: &Vm, left: bool) {
        let mut remains = self.0.lock();
        if !left {
            remains.remove(&vm.id);
        } else if remains.len() < MOST_REMAINS || remains.contains_key(&vm.id) {
            let stage = Stage::Remains(Bears::Name);
            remains.insert(vm.id.clone(), Vm { stage, ..vm.clone() });
        }
    }
}

impl Libvirt {
    /// Finds the volumes at these paths.
    pub(super) async fn find_volumes(&self, paths: &[String]) -> Vec<Result<Found, Error>> {
        join_all(paths.iter().map(|path| self.find_volume(path))).await
    }

    /// Deletes all volumes that were found, at once. Returns what is at each path then.
    pub(super) async fn delete_volumes(&self, found: Vec<Result<Found, Error>>) -> Vec<Result<Found, Error>> {
        let deleted = found.into_iter().map(async |found| match found? {
            Found::There(volume) => self.delete_volume(&volume).await,
            not_there => Ok(not_there),
        });
        join_all(deleted).await
    }

    /// Deletes one volume. Returns what is at its path then.
    async fn delete_volume(&self, volume: &Volume) -> Result<Found, Error> {
        match self.client.volume_delete(volume).await {
            Ok(()) => Ok(Found::Absent),
            // Another program deleted it, or a refresh of its pool has failed since it was found.
            Err(error) if error.code() == Some(ErrorCode::NoStorageVolume) => {
                self.find_volume(&volume.key).await
            }
            Err(error) => {
                let doing = format!("deleting the volume {}", volume.key);
                Err(self.explain(Message::new("deleting a volume of the VM", doing), &error))
            }
        }
    }

    /// The volume at `path`. An inactive pool knows none of its volumes, and no answer shows a volume that an access rule hides.
    /// So a volume counts as absent only if the pool of its folder, asked for it by name, has said so.
    ///
    /// A pool knows what its last refresh found and what was made through libvirt since. It does not find a volume that came
    /// otherwise. No pool is refreshed for that, because a pool whose refresh fails becomes inactive. A refresh that libvirt itself
    /// begins, after an upload, leaves the pool active if it fails, with few volumes or none; so may one whose file system is not
    /// mounted. cloud-api-adaptor needs its base volume in the pool. So an empty pool proves nothing. A pool that lacks only some of
    /// its volumes is not recognised. A pool that was empty for a moment shows the volume at the second look.
    pub(super) async fn find_volume(&self, path: &str) -> Result<Found, Error> {
        match self.client.volume_lookup_by_path(path).await {
            Ok(volume) => return Ok(Found::There(volume)),
            Err(error) if error.code() == Some(ErrorCode::NoStorageVolume) => {}
            Err(error) => {
                let doing = format!("looking up the volume {path}");
                return Err(self.explain(Message::new("looking up a volume of the VM", doing), &error));
            }
        }
        let pool = &self.pool;
        let doing = Message::new(
            "looking for a volume of the VM in the pool (LIBVIRT_POOL)",
            format!("looking for the volume {path} in the pool {pool:?} (LIBVIRT_POOL)"),
        );
        let explain = |error| self.explain(doing.clone(), &error);
        let pool = self.client.pool_lookup_by_name(pool).await.map_err(explain)?;
        let (folder, name) = definition::split(path);
        if definition::pool_folder(&self.client.pool_xml(&pool).await.map_err(explain)?).as_deref()
            != Some(folder)
        {
            let message = doing.map(|doing| {
                format!(
                    "{doing} failed: the volume is in a folder of another pool; set LIBVIRT_POOL to that pool, and start it"
                )
            });
            return Err(Error::new(ErrorClass::Invalid, message));
        }
        let look = async || match self.client.volume_lookup_by_name(&pool, name).await {
            Err(error) if error.code() == Some(ErrorCode::NoStorageVolume) => Ok(None),
            found => found.map(Some).map_err(explain),
        };
        if let Some(volume) = look().await? {
            return Ok(Found::There(volume));
        }
        if self.client.pool_volume_count(&pool).await.map_err(explain)? == 0 {
            return Ok(Found::EmptyPool(doing));
        }
        Ok(look().await?.map_or(Found::Absent, Found::There))
    }
}

/// Fails unless all volumes are absent. `if_deleted`: what to do if the volumes of an empty pool were deleted.
pub(super) fn ensure_absent(found: Vec<Result<Found, Error>>, if_deleted: &str) -> Result<(), Error> {
    found.into_iter().try_for_each(|found| match found? {
        Found::Absent => Ok(()),
        Found::EmptyPool(doing) => Err(empty_pool(&doing, if_deleted)),
        Found::There(volume) => {
            let public =
                "a volume of the VM is there, although libvirt did not find it when it was to delete it";
            let full = format!("{public}: {}", volume.key);
            Err(Error::new(ErrorClass::Transient, Message::new(public, full)))
        }
    })
}

/// The error of looking for a volume in a pool that shows none.
pub(super) fn empty_pool(doing: &Message, if_deleted: &str) -> Error {
    let message = doing.map(|doing| {
        format!(
            "{doing} failed: the pool shows no volume at all, not even the base volume; run virsh pool-refresh or, if its volumes \
             were deleted, {if_deleted}"
        )
    });
    Error::new(ErrorClass::Refused, message)
}
