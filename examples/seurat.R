# From a Seurat object to learned distances, and back.
#
#   Rscript examples/seurat.R [FOLDER]
#
# runs everything on pbmc_small, 80 cells that come with Seurat, and writes to FOLDER. For your own
# data, `source` this file and follow `main`. It needs the command `cometric`:
# pip install '.[cli,modules]', from a clone. If it is not on the PATH, set the environment
# variable COMETRIC to its path. Tested with R 4.2.2 and Seurat 4.3.0.

suppressPackageStartupMessages({
  library(Matrix)
  library(Seurat)
})

# Writes the counts of some genes as a 10x folder, which `cometric learn` reads.
write_counts <- function(object, folder, genes = VariableFeatures(object)) {
  counts <- if (packageVersion("SeuratObject") >= "5.0.0") {
    GetAssayData(object, assay = "RNA", layer = "counts")
  } else {
    GetAssayData(object, assay = "RNA", slot = "counts")
  }
  counts <- counts[genes, , drop = FALSE]
  counts <- counts[rowSums(counts) > 0, colSums(counts) > 0, drop = FALSE]
  dir.create(folder, recursive = TRUE, showWarnings = FALSE)
  lines <- function(x, name) {
    write.table(x, file.path(folder, name), sep = "\t",
                quote = FALSE, row.names = FALSE, col.names = FALSE)
  }
  writeMM(as(counts, "CsparseMatrix"), file.path(folder, "matrix.mtx"))
  lines(colnames(counts), "barcodes.tsv")
  lines(cbind(rownames(counts), rownames(counts)), "genes.tsv")
  invisible(folder)
}

# Runs a command of cometric, and stops if it fails.
cometric <- function(...) {
  words <- strsplit(Sys.getenv("COMETRIC", "cometric"), " ")[[1]]
  status <- system2(words[1], c(words[-1], ...))
  if (status != 0) stop("cometric ", paste(c(...), collapse = " "), " failed")
}

# Reads the table of `cometric neighbors`: item, neighbor and distance.
read_neighbors <- function(file) {
  table <- read.csv(file, colClasses = c("character", "character", "numeric"))
  names(table) <- c("item", "neighbor", "distance")
  # Names that a spreadsheet would take for formulas have a leading quote.
  for (column in c("item", "neighbor")) table[[column]] <- sub("^'", "", table[[column]])
  table
}

# Stores the nearest cells in the object: a Neighbor "cometric_nn" for RunUMAP, and a Graph
# "cometric_snn" for FindClusters, weighted by the share of common neighbors (Jaccard).
add_neighbors <- function(object, table, prune = 1 / 15) {
  cells <- colnames(object)
  missing <- setdiff(cells, table$item)
  if (length(missing)) {
    stop(length(missing), " cells have no counts on these genes; drop them first: ", missing[1])
  }
  table <- table[order(match(table$item, cells), table$distance), ]
  n <- length(cells)
  k <- nrow(table) / n
  near <- matrix(match(table$neighbor, cells), n, k, byrow = TRUE)
  away <- matrix(table$distance, n, k, byrow = TRUE)
  index <- cbind(seq_len(n), near)                      # each cell is its own first neighbor
  object[["cometric_nn"]] <- new(
    "Neighbor", nn.idx = index, nn.dist = cbind(0, away), alg.info = list(), cell.names = cells
  )
  joined <- sparseMatrix(rep(seq_len(n), k + 1), as.vector(index), x = 1, dims = c(n, n))
  shared <- as(tcrossprod(joined), "generalMatrix")
  shared@x <- shared@x / (2 * (k + 1) - shared@x)
  shared@x[shared@x < prune] <- 0
  shared <- drop0(shared)
  dimnames(shared) <- list(cells, cells)
  graph <- as.Graph(shared)
  DefaultAssay(graph) <- DefaultAssay(object)
  object[["cometric_snn"]] <- graph
  object
}

# Reads modules as a list of gene names, the most central first, without the background.
read_modules <- function(file) {
  table <- read.csv(file)
  table <- table[table$module >= 0, ]
  table <- table[order(table$module, table$rank), ]
  split(sub("^'", "", table$feature), paste0("module_", table$module))
}

main <- function(folder) {
  object <- pbmc_small
  object <- FindVariableFeatures(object, nfeatures = 200, verbose = FALSE)
  path <- function(name) file.path(folder, name)
  write_counts(object, path("cells"))
  cometric("learn", path("cells"), "-o", path("learned.npz"), "--force", "--quiet")
  cometric("neighbors", path("learned.npz"), "-o", path("cells.csv"), "--force")
  cometric("neighbors", path("learned.npz"), "-o", path("genes.csv"), "--of", "features", "--force")
  cometric("modules", path("learned.npz"), "-o", path("modules.csv"), "--force")

  object <- add_neighbors(object, read_neighbors(path("cells.csv")))
  object <- FindClusters(object, graph.name = "cometric_snn", resolution = 0.5, verbose = FALSE)
  object <- suppressWarnings(RunUMAP(object, nn.name = "cometric_nn", verbose = FALSE))
  genes <- read_neighbors(path("genes.csv"))
  cat("clusters:", table(Idents(object)), "\n")
  cat("nearest to MS4A1:", head(genes$neighbor[genes$item == "MS4A1"], 5), "\n")
  modules <- read_modules(path("modules.csv"))
  for (name in names(modules)) cat(name, ":", head(modules[[name]], 8), "\n")
  if (length(modules)) {
    object <- AddModuleScore(object, modules, name = "module_", ctrl = 5, nbin = 5)
  }
  saveRDS(object, path("object.rds"))
}

if (sys.nframe() == 0) {
  given <- commandArgs(trailingOnly = TRUE)
  main(if (length(given)) given[1] else "seurat")
}
