//! The volumes that belong to one domain.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures::future::join_all;
use libvirt_client::{ErrorCode, Volume};
use operator_kit::Message;

use super::{Libvirt, definition};
use crate::provider::{Bears, Error, ErrorClass, InstanceId, Stage, Vm};

/// The volume at a path; none where there is none.
pub(super) type Found = Option<Volume>;

/// So many domains are remembered that left volumes. One fails to be deleted beside its volumes by chance, not by thousands.
const MOST_REMAINS: usize = 1_000;

/// Domains that went while they were deleted, and whose volumes could not be. Forgotten with the process.
#[derive(Default)]
pub(super) struct Remains(Mutex<HashMap<InstanceId, Vm>>);

impl Remains {
    /// What is left of the domain, if anything is known to be.
    pub(super) fn of(&self, id: &InstanceId) -> Option<Vm> {
        self.lock().get(id).cloned()
    }

    /// Notes whether something is left of the domain.
    pub(super) fn note(&self, vm: &Vm, left: bool) {
        let mut remains = self.lock();
        if !left {
            remains.remove(&vm.id);
        } else if remains.len() < MOST_REMAINS {
            let stage = Stage::Remains(Bears::Name);
            remains.insert(vm.id.clone(), Vm { stage, ..vm.clone() });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceId, Vm>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Libvirt {
    /// Finds the volumes at these paths.
    pub(super) async fn find_volumes(&self, paths: &[String]) -> Vec<Result<Found, Error>> {
        join_all(paths.iter().map(|path| self.find_volume(path))).await
    }

    /// Deletes what was found, all at once, and tells the first problem, also of finding, when all were tried. One that is
    /// not there is deleted already.
    pub(super) async fn delete_volumes(&self, found: Vec<Result<Found, Error>>) -> Result<(), Error> {
        let deleted = found.into_iter().map(async |found| {
            let Some(volume) = found? else { return Ok(()) };
            match self.client.volume_delete(&volume).await {
                Err(error) if error.code() != Some(ErrorCode::NoStorageVolume) => {
                    let doing = format!("deleting the volume {}", volume.key);
                    Err(self.explain(Message::new("deleting a volume of the VM", doing), &error))
                }
                _ => Ok(()),
            }
        });
        join_all(deleted).await.into_iter().collect()
    }

    /// The volume at `path`. Pools that are not active know none of their volumes, and a volume that an access rule hides is in
    /// no answer either, so before a volume counts as absent the pool whose folder it lies in must have said so, asked for it
    /// by name.
    ///
    /// A pool knows what was there at its last refresh and what was made through libvirt since: a volume that came otherwise
    /// is not found. No pool is refreshed for that, as one whose refresh fails is not active any more.
    pub(super) async fn find_volume(&self, path: &str) -> Result<Found, Error> {
        match self.client.volume_lookup_by_path(path).await {
            Ok(volume) => return Ok(Some(volume)),
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
        match self.client.volume_lookup_by_name(&pool, name).await {
            Err(error) if error.code() == Some(ErrorCode::NoStorageVolume) => Ok(None),
            found => found.map(Some).map_err(explain),
        }
    }
}
