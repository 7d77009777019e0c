/* Which MPI, and where its module lies: liblockstep-mpi-openmpi.so or liblockstep-mpi-mpich.so, in
 * $LOCKSTEP_MODULES, beside the library or command this code is part of, or where those are installed. */
#include "comm/mpi/mpi.h"

#include "comm/variables.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number_of(const char *name) {
    const char *value = getenv(name);
    return value ? atoi(value) : 0;
}

const char *ls__mpi_launcher(void) {
    if (number_of("OMPI_COMM_WORLD_SIZE") > 1)
        return "openmpi";
    if (number_of("PMI_SIZE") > 1 && ls__variable("PMI_RANK"))
        return "mpich";
    return NULL;
}

int ls__mpi_launcher_size(void) {
    const char *launcher = ls__mpi_launcher();
    if (!launcher)
        return 0;
    return number_of(strcmp(launcher, "openmpi") == 0 ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE");
}

/* The MPI that this process already holds, by a symbol that only one of them has. */
static const char *loaded(void) {
    if (dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world"))
        return "openmpi";
    return dlsym(RTLD_DEFAULT, "MPI_Init") ? "mpich" : NULL;
}

/* The folder of the file that this code was loaded from; "." where unknown. */
static void own_folder(char *folder, size_t bytes) {
    static const char here = 0;
    Dl_info info;
    snprintf(folder, bytes, ".");
    if (!dladdr(&here, &info) || !info.dli_fname)
        return;
    char *file = realpath(strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe", NULL);
    char *slash = file ? strrchr(file, '/') : NULL;
    if (slash) {
        *slash = '\0';
        snprintf(folder, bytes, "%s", file);
    }
    free(file);
}

/* A module that is there but cannot be loaded says more than one that is not: its reason stays. */
static void *try_folder(const char *folder, const char *below, const char *which, char *why,
                        size_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s/liblockstep-mpi-%s.so", folder, below, which);
    /* Global, because the MPI library loads parts of its own that look for its symbols. */
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const char *error = module ? NULL : dlerror();
    if (error && (!*why || !strstr(error, "No such file")))
        snprintf(why, bytes, "%s", error);
    return module;
}

static void *find_module(const char *which, char *why, size_t bytes) {
    char folder[3072];
    *why = '\0';
    if (ls__variable("LOCKSTEP_MODULES"))
        return try_folder(getenv("LOCKSTEP_MODULES"), "", which, why, bytes);
    own_folder(folder, sizeof folder);
    void *module = try_folder(folder, "", which, why, bytes);
    if (!module) /* beside an installed library */
        module = try_folder(folder, "/lockstep", which, why, bytes);
    if (!module) /* for an installed command, in bin/ */
        module = try_folder(folder, "/../" LOCKSTEP_LIBDIR "/lockstep", which, why, bytes);
    return module;
}

ls_status ls__mpi_load(const ls__mpi_engine **engine, const char *which) {
    char why[1024];
    *engine = NULL;
    if (!which)
        which = loaded();
    if (!which)
        which = ls__mpi_launcher();
    if (!which)
        return ls__fail(LS_ERR_ARGUMENT, "neither is MPI in use in this process nor did mpirun "
                                         "start it; set LOCKSTEP_MPI to openmpi or mpich");
    void *module = find_module(which, why, sizeof why);
    if (!module)
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "the module for %s cannot be loaded: %.400s; build Lockstep where %s's "
                        "headers are installed, and set LOCKSTEP_MODULES to the modules' folder if "
                        "they were moved",
                        which, why, which);
    const ls__mpi_engine *(*get)(void);
    *(void **)&get = dlsym(module, "ls__mpi_engine_get");
    *engine = get ? get() : NULL;
    if (!*engine || (*engine)->version != LS__MPI_ENGINE_VERSION)
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "the module for %s is of another version of Lockstep; install both from "
                        "one build",
                        which);
    return LS_OK; /* never unloaded: MPI does not survive that */
}

ls_status ls__mpi_describe(const char *which, char *text, size_t bytes) {
    const ls__mpi_engine *engine;
    LS_TRY(ls__mpi_load(&engine, which));
    engine->describe(text, bytes);
    return LS_OK;
}
